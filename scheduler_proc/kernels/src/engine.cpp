// One step: embedding, layers, logits, sampling; every phase is shared among the threads.
//
// All threads run `forward` from top to bottom; each phase of it (see thread_pool.h) is work that
// they share. For a row or two, every thread normalises and quantises for itself: that takes less
// time than a phase.
#include "engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "batch_check.h"
#include "error.h"
#include "linear_phase.h"
#include "sample_batch.h"

namespace srt {

namespace {

constexpr int kPrivateRows = 2;   // inputs that every thread prepares for itself
constexpr int kLogprobRows = 64;  // rows of logits held at once for prompt log-probabilities
constexpr int kRowPieces = 8;     // per thread, of row-wise phases
constexpr int kLayerPhases = 12, kOtherPhases = 8, kLogprobPhases = 3;  // at most

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

Wanted wanted_by(const srt_model &model, const Kernels &kernels) {
  Wanted wanted;
  const auto add = [&](srt_input input, std::initializer_list<const srt_matrix *> matrices) {
    for (const srt_matrix *w : matrices)
      wanted.add(w->format, kernels.width(w->format, model.activation_bits[input]));
  };
  add(SRT_IN_HEAD, {&model.head});
  for (int i = 0; i < model.num_layers; i++) {
    const srt_layer &layer = model.layers[i];
    add(SRT_IN_QKV, {&layer.q, &layer.k, &layer.v});
    add(SRT_IN_O, {&layer.o});
    add(SRT_IN_GATE_UP, {&layer.gate, &layer.up});
    add(SRT_IN_DOWN, {&layer.down});
  }
  return wanted;
}

LinearTask task(const srt_matrix &w, float *y, size_t ldy, Output output) {
  return {{&w, nullptr}, {}, y, ldy, output, nullptr, Width::kBytes};
}

// What the linear layers of this phase are multiplied with.
srt_input input_of(Phase phase) {
  switch (phase) {
    case kQkv: return SRT_IN_QKV;
    case kOut: return SRT_IN_O;
    case kGateUp: return SRT_IN_GATE_UP;
    case kDown: return SRT_IN_DOWN;
    default: return SRT_IN_HEAD;
  }
}

}  // namespace

Engine::Engine(const srt_model &model, int threads, const Kernels &kernels)
    : model_(model),
      layers_(model.layers, model.layers + model.num_layers),
      kernels_(kernels),
      pool_(threads),
      wanted_(wanted_by(model, kernels)),
      inputs_(threads + 1),
      scratch_(threads) {
  for (const srt_layer &layer : layers_)
    if (std::find(windows_.begin(), windows_.end(), layer.window) == windows_.end())
      windows_.push_back(layer.window);
  plans_.resize(windows_.size());
}

const AttentionPlan &Engine::plan_of(const srt_layer &layer) const {
  return plans_[std::find(windows_.begin(), windows_.end(), layer.window) - windows_.begin()];
}

int Engine::step(const srt_batch &batch) {
  if (check_batch(model_, batch) != 0) return -1;
  ticked_ = now();
  batch_ = &batch;
  forbidden_ = -1;
  for (size_t i = 0; i < windows_.size(); i++)
    plans_[i].make(
        {model_.heads, model_.kv_heads, model_.head_dim, windows_[i], pool_.size()}, batch);
  reserve(batch);
  const double planned = now();
  seconds_[kOther] += planned - ticked_;
  ticked_ = planned;
  auto body = [this](Member &member) {
    forward(member);
    if (kernels_.release) kernels_.release();
  };
  pool_.run(body, max_phases(batch));
  batch_ = nullptr;
  const int row = forbidden_.load();
  return row < 0 ? 0 : set_error("sample %d: its masks allow no token", row);
}

void Engine::reserve(const srt_batch &batch) {
  const size_t rows = batch.num_tokens;
  const int widest = std::max({model_.hidden, q_size(), model_.intermediate});
  x_.need(rows * model_.hidden, growths_);
  qkv_.need(rows * qkv_size(), growths_);
  attended_.need(rows * q_size(), growths_);
  gated_.need(rows * model_.intermediate, growths_);
  up_.need(rows * model_.intermediate, growths_);
  if (wanted_.tiles) gated_tiles_.need(tiled_elements(rows, model_.intermediate), growths_);
  cos_sin_.need(rows * model_.head_dim, growths_);
  for (const AttentionPlan &plan : plans_)
    partials_.need(size_t(plan.num_records) * record_floats(model_.head_dim), growths_);
  const int logit_rows = std::max(batch.num_samples, std::min(batch.num_logprobs, kLogprobRows));
  logits_.need(size_t(logit_rows) * padded(model_.vocab), growths_);
  for (size_t i = 0; i < inputs_.size(); i++) {
    const size_t held = i == 0 ? std::max<size_t>(rows, logit_rows) : kPrivateRows;
    inputs_[i].normed.need(held * model_.hidden, growths_);
    inputs_[i].quantized.need(held, widest, wanted_, growths_);
  }
  const size_t bytes =
      std::max({linear_scratch_bytes(widest), sample_scratch_bytes(model_.vocab),
                attention_scratch_floats(model_.heads, model_.head_dim) * sizeof(float)});
  for (Buffer<uint8_t> &scratch : scratch_) scratch.need(bytes, growths_);
}

void Engine::take_profile(double *seconds) {
  std::copy(seconds_.begin(), seconds_.end(), seconds);
  seconds_.fill(0);
}

int Engine::max_phases(const srt_batch &batch) const {
  const int chunks = (batch.num_logprobs + kLogprobRows - 1) / kLogprobRows;
  return model_.num_layers * kLayerPhases + chunks * kLogprobPhases + kOtherPhases;
}

void Engine::tick(const Member &member, Phase phase) {
  if (member.thread() != 0) return;
  const double time = now();
  seconds_[phase] += time - ticked_;
  ticked_ = time;
}

// ---- the layers ---------------------------------------------------------------------------------

void Engine::forward(Member &member) {
  each_row(member, batch_->num_tokens, [this](int token) { embed_token(token); });
  tick(member, kEmbed);
  for (const srt_layer &layer : layers_) {
    attention_block(member, layer);
    mlp_block(member, layer);
  }
  prompt_logprobs(member);
  sample(member);
}

void Engine::embed_token(int token) {
  float *x = x_.get() + size_t(token) * model_.hidden;
  const int32_t *tokens = batch_->embed_tokens, *end = tokens + batch_->num_embeds;
  const int32_t *at = std::lower_bound(tokens, end, token);
  if (at != end && *at == token)
    std::copy_n(batch_->embeds + (at - tokens) * size_t(model_.hidden), model_.hidden, x);
  else
    srt_unpack_row(&model_.embed, batch_->input_ids[token], x);
  const int half = model_.head_dim / 2;
  float *cosines = cos_sin_.get() + size_t(token) * model_.head_dim, *sines = cosines + half;
  for (int i = 0; i < half; i++) {
    const float angle = static_cast<float>(batch_->positions[token]) * model_.rope_freqs[i];
    cosines[i] = std::cos(angle);
    sines[i] = std::sin(angle);
  }
}

void Engine::attention_block(Member &member, const srt_layer &layer) {
  const int rows = batch_->num_tokens, width = qkv_size();
  float *x = x_.get(), *qkv = qkv_.get();
  project(member, rows, model_.hidden, layer.attn_norm,
          [&](int row) { return x + size_t(row) * model_.hidden; },
          {task(layer.q, qkv, width, Output::kStore),
           task(layer.k, qkv + q_size(), width, Output::kStore),
           task(layer.v, qkv + q_size() + kv_size(), width, Output::kStore)},
          kQkv);
  each_row(member, rows, [&](int token) { rotate_and_store(layer, token); });
  tick(member, kRope);
  attend(member, layer);
  const float *attended = attended_.get();
  project(member, rows, q_size(), nullptr,
          [&](int row) { return attended + size_t(row) * q_size(); },
          {task(layer.o, x, model_.hidden, Output::kAdd)}, kOut);
}

void Engine::rotate_and_store(const srt_layer &layer, int token) {
  float *q = qkv_.get() + size_t(token) * qkv_size(), *k = q + q_size(), *v = k + kv_size();
  const float *cos_sin = cos_sin_.get() + size_t(token) * model_.head_dim;
  const int dim = model_.head_dim;
  if (layer.q_norm)
    for (int h = 0; h < model_.heads; h++)
      kernels_.rms_norm(q + h * dim, layer.q_norm, dim, model_.rms_eps, q + h * dim);
  if (layer.k_norm)
    for (int h = 0; h < model_.kv_heads; h++)
      kernels_.rms_norm(k + h * dim, layer.k_norm, dim, model_.rms_eps, k + h * dim);
  kernels_.rope(q, cos_sin, model_.heads + model_.kv_heads, dim);
  kernels_.scale(q, q_size(), model_.attn_scale * kLog2E);
  store_kv(k, layer.k_pool, batch_->out_slots[token]);
  store_kv(v, layer.v_pool, batch_->out_slots[token]);
}

void Engine::store_kv(const float *x, void *pool, int32_t slot) {
  const size_t at = size_t(slot) * kv_size();
  if (model_.kv_format == SRT_I16) {
    auto *scales = const_cast<float *>(word_scales(pool, model_.num_slots, kv_size()));
    return kernels_.store_kv_words(x, model_.kv_heads, model_.head_dim,
                                   static_cast<int16_t *>(pool) + at,
                                   scales + size_t(slot) * model_.kv_heads);
  }
  const size_t bytes = model_.kv_format == SRT_F16 ? sizeof(f16) : sizeof(float);
  kernels_.store_kv(x, kv_size(), model_.kv_format, static_cast<char *>(pool) + at * bytes);
}

void Engine::attend(Member &member, const srt_layer &layer) {
  const AttentionPlan &plan = plan_of(layer);
  const AttentionCall call{model_.heads,     model_.kv_heads,
                           model_.head_dim,  model_.kv_format,
                           model_.num_slots, is_tiled(layer.q.format),
                           layer.k_pool,     layer.v_pool,
                           qkv_.get(),       size_t(qkv_size()),
                           attended_.get(),  size_t(q_size()),
                           plan.queries.data(), partials_.get()};
  auto *scratch = reinterpret_cast<float *>(scratch_[member.thread()].get());
  member.share(static_cast<int>(plan.units.size()),
               [&](int unit) { kernels_.attend(call, plan.units[unit], scratch); });
  tick(member, kAttention);
  if (plan.folds.empty()) return;
  member.share(static_cast<int>(plan.folds.size()),
               [&](int i) { kernels_.fold(call, plan.queries[plan.folds[i]]); });
  tick(member, kFold);
}

void Engine::mlp_block(Member &member, const srt_layer &layer) {
  const int rows = batch_->num_tokens, width = model_.intermediate;
  float *x = x_.get(), *gated = gated_.get(), *up = up_.get();
  const auto hidden_row = [&](int row) { return x + size_t(row) * model_.hidden; };
  LinearTask both = task(layer.gate, gated, width, Output::kSiluMul);
  both.w[1] = &layer.up;
  LinearTask down = task(layer.down, x, model_.hidden, Output::kAdd);
  if (layer.gate.format == layer.up.format && is_tiled(layer.up.format) &&
      is_tiled(layer.down.format)) {
    both.output = Output::kSiluTiles;
    both.tiles = gated_tiles_.get();
    project(member, rows, model_.hidden, layer.mlp_norm, hidden_row, {both}, kGateUp);
    down.x.tiles = gated_tiles_.get();
    down.x.columns = tile_columns(rows);
    linear_phase(member, kernels_, &down, 1, rows, scratch_[member.thread()].get(), [] {});
    return tick(member, kDown);
  }
  if (layer.gate.format == layer.up.format) {
    project(member, rows, model_.hidden, layer.mlp_norm, hidden_row, {both}, kGateUp);
  } else {
    project(member, rows, model_.hidden, layer.mlp_norm, hidden_row,
            {task(layer.gate, gated, width, Output::kStore),
             task(layer.up, up, width, Output::kStore)},
            kGateUp);
    each_row(member, rows, [&](int row) {
      const size_t at = size_t(row) * width;
      kernels_.silu_mul(gated + at, up + at, width);
    });
  }
  project(member, rows, width, nullptr, [&](int row) { return gated + size_t(row) * width; },
          {down}, kDown);
}

// ---- logits -------------------------------------------------------------------------------------

// Logits of `rows` tokens into logits_.
void Engine::head(Member &member, const int32_t *tokens, int rows) {
  const float *x = x_.get();
  project(member, rows, model_.hidden, model_.final_norm,
          [&](int row) { return x + size_t(tokens[row]) * model_.hidden; },
          {task(model_.head, logits_.get(), padded(model_.vocab), Output::kStore)}, kHead);
}

void Engine::prompt_logprobs(Member &member) {
  const srt_batch &batch = *batch_;
  for (int first = 0; first < batch.num_logprobs; first += kLogprobRows) {
    const int rows = std::min(kLogprobRows, batch.num_logprobs - first);
    head(member, batch.logprob_tokens + first, rows);
    SampleScratch scratch = sample_scratch(scratch_[member.thread()].get(), model_.vocab);
    member.share(rows, [&](int row) {
      const float *logits = logits_.get() + size_t(row) * padded(model_.vocab);
      score_batch_row(kernels_, batch, first + row, logits, model_.vocab, scratch);
    });
    tick(member, kSample);
  }
}

void Engine::sample(Member &member) {
  const srt_batch &batch = *batch_;
  if (batch.num_samples == 0) return;
  head(member, batch.sample_tokens, batch.num_samples);
  SampleScratch scratch = sample_scratch(scratch_[member.thread()].get(), model_.vocab);
  member.share(batch.num_samples, [&](int row) {
    float *logits = logits_.get() + size_t(row) * padded(model_.vocab);
    if (!sample_batch_row(kernels_, batch, row, logits, model_.vocab, scratch)) forbidden_ = row;
  });
  tick(member, kSample);
}

// ---- helpers ------------------------------------------------------------------------------------

template <class Row>
void Engine::each_row(Member &member, int rows, Row row) {
  each_part(member, rows, 1, [&](int i, int) { row(i); });
}

template <class Rows>
void Engine::each_part(Member &member, int rows, int unit, Rows part) {
  const int step = std::max(1, rows / (pool_.size() * kRowPieces * unit)) * unit;
  member.share((rows + step - 1) / step, [&](int piece) {
    const int end = std::min(rows, (piece + 1) * step);
    for (int i = piece * step; i < end; i += unit) part(i, std::min(end, i + unit));
  });
}

template <class RowOf>
void Engine::project(Member &member, int rows, int k, const float *weight, RowOf x_row,
                     std::initializer_list<LinearTask> tasks, Phase phase) {
  const bool is_private = rows <= kPrivateRows;
  Input &to = inputs_[is_private ? 1 + member.thread() : 0];
  LinearTask filled[kMaxTasks];
  Wanted wanted;
  int count = 0;
  const int32_t bits = model_.activation_bits[input_of(phase)];
  for (const LinearTask &each : tasks) {
    LinearTask &task = filled[count++] = each;
    task.x = to.quantized.view(weight ? to.normed.get() : x_row(0), rows);
    task.width = kernels_.width(task.w[0]->format, bits);
    wanted.add(task.w[0]->format, task.width);
  }
  const auto prepare = [&](int first, int last) {
    const float *x[kTileRows];
    for (int row = first; row < last; row++) {
      const float *&at = x[row - first] = x_row(row);
      if (weight) {
        float *normed = to.normed.get() + size_t(row) * k;
        kernels_.rms_norm(at, weight, k, model_.rms_eps, normed);
        at = normed;
      }
      to.quantized.quantize(kernels_, wanted, at, row, k);
    }
    if (wanted.tiles) to.quantized.tile(kernels_, x, first, last - first, rows, k);
  };
  if (!is_private) each_part(member, rows, wanted.tiles ? kTileRows : 1, prepare);
  tick(member, kNorm);
  linear_phase(member, kernels_, filled, count, rows, scratch_[member.thread()].get(), [&] {
    if (is_private) prepare(0, rows);
  });
  tick(member, phase);
}

}  // namespace srt
