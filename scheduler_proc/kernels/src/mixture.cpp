// The phases of a mixture, for each panel of tokens: router; choice and sorting; gate and up of all
// used experts; down; sums.
//
// A step of one token has fewer phases: threads choose for themselves, and a piece of `down` is a
// range of channels of all experts, which it also sums.
#include "mixture.h"

#include <algorithm>

namespace srt {

namespace {

using Member = ThreadPool::Member;

// Rows of the tiles that hold an expert's `rows`.
int tile_rows(int rows) {
  return rows < kTileRows ? rows : (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// Those of all experts have fewer than twice their rows.
size_t most_tile_rows(size_t pairs) { return 2 * pairs; }

bool has_shared(const srt_experts &experts) { return experts.shared_gate.n > 0; }

}  // namespace

std::vector<MlpWeights> mlps_of(const srt_experts &experts) {
  std::vector<MlpWeights> found{{experts.gate, experts.up, experts.down}};
  if (has_shared(experts))
    found.push_back({&experts.shared_gate, &experts.shared_up, &experts.shared_down});
  return found;
}

MlpKind::MlpKind(const MlpWeights &mlp, const srt_model &model, const Kernels &kernels)
    : width(mlp.gate->n),
      is_joined(mlp.gate->format == mlp.up->format),
      is_direct(is_joined && is_tiled(mlp.up->format) && is_tiled(mlp.down->format)),
      gate(kernels.width(mlp.gate->format, model.activation_bits[SRT_IN_GATE_UP])),
      up(kernels.width(mlp.up->format, model.activation_bits[SRT_IN_GATE_UP])),
      down(kernels.width(mlp.down->format, model.activation_bits[SRT_IN_DOWN])) {
  has_floats = !is_quantized(mlp.gate->format) || !is_quantized(mlp.up->format);
  inputs.add(mlp.gate->format, gate);
  inputs.add(mlp.up->format, up);
  if (!is_direct) middle.add(mlp.down->format, down);
}

void MlpRows::need(const MlpKind &kind, size_t rows, size_t hidden, int64_t &growths) {
  if (kind.width == 0) return;
  const size_t tiled = most_tile_rows(rows) + kTileRows;
  gated.need(rows * kind.width, growths);
  if (!kind.is_joined) up.need(rows * kind.width, growths);
  if (kind.is_direct) tiles.need(tiled * kind.width, growths);
  middle.need(rows, kind.width, kind.middle, growths, tiled);
  out.need(rows * hidden, growths);
}

Mixtures::Mixtures(const srt_model &model, const Kernels &kernels, int threads)
    : model_(model), kernels_(kernels), layers_(model.num_layers), own_(threads) {
  // `is_joined` and `is_direct` of the widest say whether some layer's are not, and are.
  widest_experts_.is_direct = widest_shared_.is_direct = false;
  const auto widen = [](MlpKind &widest, const MlpKind &kind) {
    widest.width = std::max(widest.width, kind.width);
    widest.is_joined = widest.is_joined && kind.is_joined;
    widest.is_direct = widest.is_direct || kind.is_direct;
    widest.has_floats = widest.has_floats || kind.has_floats;
    widest.inputs.add(kind.inputs);
    widest.middle.add(kind.middle);
  };
  for (int i = 0; i < model.num_layers; i++) {
    const srt_experts *experts = model.layers[i].experts;
    if (experts == nullptr) continue;
    const std::vector<MlpWeights> mlps = mlps_of(*experts);
    layers_[i].experts = MlpKind(mlps[0], model, kernels);
    widen(widest_experts_, layers_[i].experts);
    if (mlps.size() > 1) {
      layers_[i].shared = MlpKind(mlps[1], model, kernels);
      widen(widest_shared_, layers_[i].shared);
    }
    most_experts_ = std::max(most_experts_, experts->count);
    most_used_ = std::max(most_used_, experts->used);
  }
  widest_ = std::max(widest_experts_.width, widest_shared_.width);
  counts_ = std::vector<std::atomic<int64_t>>(layers_.size() * most_experts_);
}

int Mixtures::panels_of(int tokens) const {
  if (most_experts_ == 0) return 0;
  const int most = std::max(kPanelTokens, kExpertTokens * most_experts_ / most_used_);
  return (tokens + most - 1) / most;
}

void Mixtures::reserve(int tokens, int64_t &growths) {
  if (most_experts_ == 0) return;
  const int panels = panels_of(tokens);
  const size_t rows = (tokens + panels - 1) / panels, pairs = rows * most_used_, hidden = model_.hidden;
  const size_t experts = std::min<size_t>(most_experts_, pairs);
  logits_.need(rows * padded(most_experts_), growths);
  shared_weights_.need(rows, growths);
  lists_.need(rows, most_experts_, most_used_, growths);
  first_tiles_.need(most_experts_, growths);
  gate_up_.need(2 * (experts + 1), growths);
  down_.need(experts + 1, growths);
  pairs_.need(widest_experts_, pairs, hidden, growths);
  shared_.need(widest_shared_, rows, hidden, growths);
  if (tokens > 1) {
    if (widest_experts_.has_floats) gathered_.need(pairs * hidden, growths);
    quantized_.need(pairs, hidden, widest_experts_.inputs, growths, most_tile_rows(pairs));
    return;
  }
  for (Own &own : own_) {
    own.tasks.need(2 * (most_used_ + 1), growths);
    own.middle.need(most_used_, widest_experts_.width, widest_experts_.middle, growths);
    own.shared_middle.need(1, widest_shared_.width, widest_shared_.middle, growths);
  }
}

void Mixtures::copy_counts(int64_t *counts) const {
  for (const std::atomic<int64_t> &count : counts_)
    *counts++ = count.load(std::memory_order_relaxed);
}

// One thread's way through one layer's mixture.
class MixtureRun {
 public:
  MixtureRun(Mixtures &all, Member &member, int index, const srt_layer &layer,
             const Mixtures::Step &step, uint8_t *scratch)
      : all_(all),
        model_(all.model_),
        kernels_(all.kernels_),
        member_(member),
        index_(index),
        layer_(layer),
        experts_(*layer.experts),
        kind_(all.layers_[index].experts),
        shared_kind_(all.layers_[index].shared),
        step_(step),
        scratch_(scratch),
        has_shared_(has_shared(experts_)) {}

  void many_tokens();
  void one_token();

 private:
  // Some rows of the inputs, as they lie among the others and among those of tiles.
  struct Place {
    int rows;
    size_t first, first_tile;
  };

  MlpWeights weights_of(int expert) const {
    return {experts_.gate + expert, experts_.up + expert, experts_.down + expert};
  }
  MlpWeights shared_weights() const {
    return {&experts_.shared_gate, &experts_.shared_up, &experts_.shared_down};
  }
  int hidden() const { return model_.hidden; }
  float *x_row(int row) const { return step_.x + size_t(row) * hidden(); }
  float *logits_of(int row) const { return all_.logits_.get() + size_t(row) * padded(experts_.count); }

  Wanted inputs_wanted() const;
  LinearTask router_task(const Input &input) const;
  void choose(const Input &input, int row, int32_t *ids, float *weights, float *shared) const;
  void count(int expert, int tokens) const;

  LinearTask *add_gate_up(LinearTask *to, const MlpKind &kind, const MlpWeights &weights,
                          MlpRows &rows, const Activations &x, const Place &at) const;
  LinearTask down_task(const MlpKind &kind, const MlpWeights &weights, MlpRows &rows,
                       const ActivationBuffer &middle, const Place &at) const;
  void join(const MlpKind &kind, MlpRows &rows, int row) const;
  void quantize_middle(const MlpKind &kind, MlpRows &rows, ActivationBuffer &middle,
                       int row) const;
  void tile_middle(const MlpKind &kind, MlpRows &rows, ActivationBuffer &middle, const Place &at,
                   int tile) const;
  // Adds channels [first, last) of a token's experts to x.
  void add_up(int row, const int32_t *pairs, const float *weights, float shared, int first,
              int last) const;

  // Of many tokens.
  void sort();
  void gather();
  void prepare_middle();
  void join_rows();
  Place place_of(int expert) const {
    return {all_.lists_.size_of(expert), size_t(all_.lists_.first_of(expert)),
            size_t(all_.first_tiles_.get()[expert])};
  }
  int gather_phases() const { return gathers_rows() + kind_.inputs.tiles; }
  bool gathers_rows() const { return kind_.inputs.codes() || kind_.has_floats; }
  int middle_phases() const { return joins_rows() + quantizes_middle() + tiles_middle(); }
  bool quantizes_middle() const {
    return kind_.middle.codes() || (has_shared_ && shared_kind_.middle.codes());
  }
  bool tiles_middle() const {
    return kind_.middle.tiles || (has_shared_ && shared_kind_.middle.tiles);
  }
  bool joins_rows() const { return !kind_.is_joined || (has_shared_ && !shared_kind_.is_joined); }
  // Calls row(kind, rows, index) for the rows of all experts, as one phase.
  template <class Row>
  void each_expert_row(Row row);

  // Of one token.
  LinearTask *own_gate_up(const Input &input, const int32_t *ids) const;
  LinearTask *own_down() const;

  Mixtures &all_;
  const srt_model &model_;
  const Kernels &kernels_;
  Member &member_;
  const int index_;
  const srt_layer &layer_;
  const srt_experts &experts_;
  const MlpKind &kind_, &shared_kind_;
  const Mixtures::Step &step_;
  uint8_t *const scratch_;
  const bool has_shared_;
};

void Mixtures::run(Member &member, int index, const srt_layer &layer, const Step &step,
                   uint8_t *scratch) {
  const int panels = panels_of(step.rows);
  for (int64_t i = 0; i < panels; i++) {
    const int first = int(step.rows * i / panels), end = int(step.rows * (i + 1) / panels);
    const Step panel{step.x + size_t(first) * model_.hidden, end - first, step.inputs, step.clock};
    MixtureRun run(*this, member, index, layer, panel, scratch);
    panel.rows == 1 ? run.one_token() : run.many_tokens();
  }
}

// ---- parts --------------------------------------------------------------------------------------

// What the tokens' own rows are needed as: pairs have copies of their codes, and tiles of their own.
Wanted MixtureRun::inputs_wanted() const {
  Wanted wanted = kind_.inputs;
  wanted.tiles = wanted.tiles && step_.rows == 1;
  if (has_shared_) wanted.add(shared_kind_.inputs);
  return wanted;
}

LinearTask MixtureRun::router_task(const Input &input) const {
  LinearTask task{{&experts_.router, nullptr}, {}, all_.logits_.get(),
                  size_t(padded(experts_.count)), Output::kStore, nullptr, Width::kBytes};
  task.x.x = input.normed.get();
  task.rows = step_.rows;
  return task;
}

void MixtureRun::choose(const Input &input, int row, int32_t *ids, float *weights,
                        float *shared) const {
  choose_experts(experts_, logits_of(row), reinterpret_cast<float *>(scratch_), ids, weights);
  *shared = shared_weight(experts_, input.normed.get() + size_t(row) * hidden(), hidden());
}

void MixtureRun::count(int expert, int tokens) const {
  all_.counts_[size_t(index_) * all_.most_experts_ + expert].fetch_add(tokens,
                                                                       std::memory_order_relaxed);
}

LinearTask *MixtureRun::add_gate_up(LinearTask *to, const MlpKind &kind, const MlpWeights &weights,
                                    MlpRows &rows, const Activations &x, const Place &at) const {
  const auto add = [&](const srt_matrix *w, const srt_matrix *with, float *y, Output output,
                       Width width) {
    *to = {{w, with}, x, y + at.first * kind.width, size_t(kind.width), output, nullptr, width};
    to->tiles = rows.tiles.at(at.first_tile * kind.width);
    to++->rows = at.rows;
  };
  const Output joined = kind.is_direct ? Output::kSiluTiles : Output::kSiluMul;
  if (kind.is_joined) {
    add(weights.gate, weights.up, rows.gated.get(), joined, kind.gate);
  } else {
    add(weights.gate, nullptr, rows.gated.get(), Output::kStore, kind.gate);
    add(weights.up, nullptr, rows.up.get(), Output::kStore, kind.up);
  }
  return to;
}

LinearTask MixtureRun::down_task(const MlpKind &kind, const MlpWeights &weights, MlpRows &rows,
                                 const ActivationBuffer &middle, const Place &at) const {
  LinearTask task{{weights.down, nullptr},
                  middle.view(rows.gated.get(), at.rows, kind.width, at.first, at.first_tile),
                  rows.out.get() + at.first * hidden(),
                  size_t(hidden()),
                  Output::kStore,
                  nullptr,
                  kind.down};
  if (kind.is_direct) task.x.tiles = rows.tiles.get() + at.first_tile * kind.width;
  task.rows = at.rows;
  return task;
}

// Takes SiLU where gate and up were computed apart.
void MixtureRun::join(const MlpKind &kind, MlpRows &rows, int row) const {
  const size_t at = size_t(row) * kind.width;
  if (!kind.is_joined) kernels_.silu_mul(rows.gated.get() + at, rows.up.get() + at, kind.width);
}

void MixtureRun::quantize_middle(const MlpKind &kind, MlpRows &rows, ActivationBuffer &middle,
                                 int row) const {
  const float *gated = rows.gated.get() + size_t(row) * kind.width;
  middle.quantize(kernels_, kind.middle, gated, row, kind.width);
}

template <class Row>
void MixtureRun::each_expert_row(Row row) {
  const int pairs = step_.rows * experts_.used, more = has_shared_ ? step_.rows : 0;
  each_row(member_, pairs + more, [&](int i) {
    if (i < pairs)
      row(kind_, all_.pairs_, i);
    else
      row(shared_kind_, all_.shared_, i - pairs);
  });
}

void MixtureRun::join_rows() {
  if (!joins_rows()) return;
  each_expert_row([this](const MlpKind &kind, MlpRows &rows, int row) { join(kind, rows, row); });
}

void MixtureRun::tile_middle(const MlpKind &kind, MlpRows &rows, ActivationBuffer &middle,
                             const Place &at, int tile) const {
  const int first = tile * kTileRows, count = std::min(kTileRows, at.rows - first);
  const float *x[kTileRows];
  for (int i = 0; i < count; i++)
    x[i] = rows.gated.get() + (at.first + first + i) * kind.width;
  middle.tile(kernels_, x, at.first_tile + first, count, at.rows, kind.width);
}

void MixtureRun::add_up(int row, const int32_t *pairs, const float *weights, float shared,
                        int first, int last) const {
  const float *rows[kMaxUsed + 1];
  float by[kMaxUsed + 1];
  int count = experts_.used;
  for (int i = 0; i < count; i++) {
    rows[i] = all_.pairs_.out.get() + size_t(pairs[i]) * hidden() + first;
    by[i] = weights[i];
  }
  if (has_shared_) {
    rows[count] = all_.shared_.out.get() + size_t(row) * hidden() + first;
    by[count++] = shared;
  }
  kernels_.add_weighted(rows, by, count, last - first, model_.residual_scale, x_row(row) + first);
}

// ---- many tokens --------------------------------------------------------------------------------

void MixtureRun::many_tokens() {
  Input &input = step_.inputs[0];
  const int rows = step_.rows, used = experts_.used;
  const Wanted wanted = inputs_wanted();
  const InputRows prepared{kernels_, input, wanted, layer_.mlp_norm, model_.rms_eps, rows, hidden()};
  each_part(member_, rows, wanted.tiles ? kTileRows : 1, [&](int first, int last) {
    prepared.prepare(first, last, [this](int row) { return x_row(row); });
  });
  step_.clock.tick(member_, kNorm);
  LinearTask router = router_task(input);
  linear_phase(member_, kernels_, &router, 1, scratch_, [] {});
  each_row(member_, rows, [&](int row) {
    choose(input, row, all_.lists_.experts_of(row, used), all_.lists_.weights_of(row, used),
           all_.shared_weights_.get() + row);
  });
  member_.share(1, [&](int) { sort(); });
  gather();
  step_.clock.tick(member_, kRouter);
  member_.share_announced([&](int piece) {
    run_piece(kernels_, all_.gate_up_.get(), all_.num_gate_up_, piece, scratch_);
  });
  step_.clock.tick(member_, kGateUp);
  prepare_middle();
  step_.clock.tick(member_, kNorm);
  member_.share_announced([&](int piece) {
    run_piece(kernels_, all_.down_.get(), all_.num_down_, piece, scratch_);
  });
  step_.clock.tick(member_, kDown);
  each_row(member_, rows, [&](int row) {
    add_up(row, all_.lists_.pairs_of(row, used), all_.lists_.weights_of(row, used),
           all_.shared_weights_.get()[row], 0, hidden());
  });
  step_.clock.tick(member_, kCombine);
}

// Lists the tokens of each expert, and the tasks of those that have any.
void MixtureRun::sort() {
  const Input &input = step_.inputs[0];
  all_.lists_.sort(step_.rows, experts_.count, experts_.used);
  LinearTask *gate_up = all_.gate_up_.get(), *down = all_.down_.get();
  const float *inputs = all_.gathered_.get();
  for (int e = 0, tiled = 0; e < experts_.count; e++) {
    all_.first_tiles_.get()[e] = tiled;
    const Place at = place_of(e);
    if (at.rows == 0) continue;
    count(e, at.rows);
    tiled += tile_rows(at.rows);
    const Activations x =
        all_.quantized_.view(inputs, at.rows, hidden(), at.first, at.first_tile);
    gate_up = add_gate_up(gate_up, kind_, weights_of(e), all_.pairs_, x, at);
    *down++ = down_task(kind_, weights_of(e), all_.pairs_, all_.pairs_.middle, at);
  }
  if (has_shared_) {
    const Place at{step_.rows, 0, 0};
    const Activations x = input.quantized.view(input.normed.get(), step_.rows);
    gate_up = add_gate_up(gate_up, shared_kind_, shared_weights(), all_.shared_, x, at);
    *down++ = down_task(shared_kind_, shared_weights(), all_.shared_, all_.shared_.middle, at);
  }
  all_.num_gate_up_ = int(gate_up - all_.gate_up_.get());
  all_.num_down_ = int(down - all_.down_.get());
  const int pieces = plan_pieces(all_.gate_up_.get(), all_.num_gate_up_, member_.size());
  member_.announce(gather_phases(), pieces);
  member_.announce(gather_phases() + 1 + middle_phases(),
                   plan_pieces(all_.down_.get(), all_.num_down_, member_.size()));
}

// Copies the tokens' inputs to their pairs, so that an expert's lie side by side.
void MixtureRun::gather() {
  const Input &input = step_.inputs[0];
  const auto normed = [&](int pair) {
    return input.normed.get() + size_t(all_.lists_.token_of(pair)) * hidden();
  };
  if (gathers_rows())
    each_row(member_, step_.rows * experts_.used, [&](int pair) {
      const size_t token = all_.lists_.token_of(pair);
      all_.quantized_.copy(kind_.inputs, input.quantized, token, pair, hidden());
      if (kind_.has_floats)
        std::copy_n(normed(pair), hidden(), all_.gathered_.get() + size_t(pair) * hidden());
    });
  if (!kind_.inputs.tiles) return;
  each_row(member_, experts_.count, [&](int expert) {
    const Place at = place_of(expert);
    const float *x[kTileRows];
    for (int first = 0; first < at.rows; first += kTileRows) {
      const int count = std::min(kTileRows, at.rows - first);
      for (int i = 0; i < count; i++) x[i] = normed(int(at.first) + first + i);
      all_.quantized_.tile(kernels_, x, at.first_tile + first, count, at.rows, hidden());
    }
  });
}

// Makes what gate and up computed the inputs of down.
void MixtureRun::prepare_middle() {
  join_rows();
  if (quantizes_middle())
    each_expert_row([this](const MlpKind &kind, MlpRows &rows, int row) {
      quantize_middle(kind, rows, rows.middle, row);
    });
  if (!tiles_middle()) return;
  const int rows = step_.rows;
  const int experts = kind_.middle.tiles ? experts_.count : 0;
  const int tiles = has_shared_ && shared_kind_.middle.tiles ? (rows + kTileRows - 1) / kTileRows : 0;
  each_row(member_, experts + tiles, [&](int i) {
    if (i >= experts)
      return tile_middle(shared_kind_, all_.shared_, all_.shared_.middle, {rows, 0, 0}, i - experts);
    const Place at = place_of(i);
    for (int tile = 0; tile * kTileRows < at.rows; tile++)
      tile_middle(kind_, all_.pairs_, all_.pairs_.middle, at, tile);
  });
}

// ---- one token ----------------------------------------------------------------------------------

// A thread prepares the token's input, and chooses, when it gets its first piece that needs it: a
// thread that was away may find what belongs to a later layer. So piece 0 of gate and up publishes
// the choice for `down`, whose pieces change x.
void MixtureRun::one_token() {
  Input &input = step_.inputs[1 + member_.thread()];
  const Wanted wanted = inputs_wanted();
  const InputRows prepared{kernels_, input, wanted, layer_.mlp_norm, model_.rms_eps, 1, hidden()};
  bool is_prepared = false;
  const auto prepare = [&] {
    if (!is_prepared) prepared.prepare(0, 1, [this](int) { return step_.x; });
    is_prepared = true;
  };
  LinearTask router = router_task(input);
  linear_phase(member_, kernels_, &router, 1, scratch_, prepare);
  step_.clock.tick(member_, kRouter);

  const int used = experts_.used;
  int32_t ids[kMaxUsed];
  float weights[kMaxUsed], shared = 1;
  for (int i = 0; i < used; i++) ids[i] = i;  // any, to count the pieces
  LinearTask *tasks = all_.own_[member_.thread()].tasks.get();
  int num_tasks = int(own_gate_up(input, ids) - tasks);
  const int pieces = plan_pieces(tasks, num_tasks, member_.size());
  member_.share(
      pieces,
      [&] {
        prepare();
        choose(input, 0, ids, weights, &shared);
        own_gate_up(input, ids);
        plan_pieces(tasks, num_tasks, member_.size());
      },
      [&](int piece) {
        if (piece == 0) {
          std::copy_n(ids, used, all_.lists_.experts_of(0, used));
          std::copy_n(weights, used, all_.lists_.weights_of(0, used));
          *all_.shared_weights_.get() = shared;
          for (int i = 0; i < used; i++) count(ids[i], 1);
        }
        run_piece(kernels_, tasks, num_tasks, piece, scratch_);
      });
  join_rows();
  step_.clock.tick(member_, kGateUp);

  const int pairs = (blocks_of(hidden()) + 1) / 2;
  const int step = std::max(1, pairs / (member_.size() * kPiecesPerThread));
  member_.share((pairs + step - 1) / step, [&] { num_tasks = int(own_down() - tasks); },
                [&](int piece) {
                  const int first = piece * step, last = std::min(pairs, first + step);
                  for (int i = 0; i < num_tasks; i++)
                    kernels_.linear(tasks[i], first, last, 0, 1, scratch_);
                  int32_t in_order[kMaxUsed];
                  for (int i = 0; i < used; i++) in_order[i] = i;
                  add_up(0, in_order, all_.lists_.weights_of(0, used), *all_.shared_weights_.get(),
                         first * 2 * kBlock, std::min(hidden(), last * 2 * kBlock));
                });
  step_.clock.tick(member_, kDown);
}

// Writes the thread's tasks for these experts, and returns their end.
LinearTask *MixtureRun::own_gate_up(const Input &input, const int32_t *ids) const {
  LinearTask *to = all_.own_[member_.thread()].tasks.get();
  const Activations x = input.quantized.view(input.normed.get(), 1);
  for (int i = 0; i < experts_.used; i++)
    to = add_gate_up(to, kind_, weights_of(ids[i]), all_.pairs_, x, {1, size_t(i), size_t(i)});
  if (has_shared_)
    to = add_gate_up(to, shared_kind_, shared_weights(), all_.shared_, x, {1, 0, 0});
  return to;
}

// The same for `down`, whose inputs it prepares.
LinearTask *MixtureRun::own_down() const {
  Mixtures::Own &own = all_.own_[member_.thread()];
  LinearTask *to = own.tasks.get();
  const int32_t *ids = all_.lists_.experts_of(0, experts_.used);
  const auto add = [&](const MlpKind &kind, const MlpWeights &weights, MlpRows &rows,
                       ActivationBuffer &middle, const Place &at) {
    quantize_middle(kind, rows, middle, int(at.first));
    if (kind.middle.tiles) tile_middle(kind, rows, middle, at, 0);
    *to++ = down_task(kind, weights, rows, middle, at);
  };
  for (int i = 0; i < experts_.used; i++)
    add(kind_, weights_of(ids[i]), all_.pairs_, own.middle, {1, size_t(i), size_t(i)});
  if (has_shared_) add(shared_kind_, shared_weights(), all_.shared_, own.shared_middle, {1, 0, 0});
  return to;
}

}  // namespace srt
