// One step: embedding, layers, logits, sampling; every phase is shared among the threads.
//
// All threads run `forward` from top to bottom; each phase of it (see thread_pool.h) is work that
// they share. For a row or two, every thread normalises and quantises for itself: that takes less
// time than a phase.
#include "engine.h"

#include <algorithm>
#include <cmath>

#include "batch_check.h"
#include "error.h"
#include "linear_phase.h"
#include "sample_batch.h"

namespace srt {

namespace {

constexpr int kPrivateRows = 2;   // inputs that every thread prepares for itself
constexpr int kMaxTasks = 3;     // of one phase: q, k and v
constexpr int kLogprobRows = 64;  // rows of logits held at once for prompt log-probabilities
constexpr int kLayerPhases = 12, kOtherPhases = 8, kLogprobPhases = 3;  // at most

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
    if (const srt_experts *experts = layer.experts) {
      for (const MlpWeights &mlp : mlps_of(*experts)) {
        add(SRT_IN_GATE_UP, {mlp.gate, mlp.up});
        add(SRT_IN_DOWN, {mlp.down});
      }
    } else {
      add(SRT_IN_GATE_UP, {&layer.gate, &layer.up});
      add(SRT_IN_DOWN, {&layer.down});
    }
  }
  return wanted;
}

int widest_dense(const srt_model &model) {
  for (int i = 0; i < model.num_layers; i++)
    if (model.layers[i].experts == nullptr) return model.intermediate;
  return 0;
}

LinearTask task(const srt_matrix &w, float *y, size_t ldy, Output output) {
  return {{&w, nullptr}, {}, y, ldy, output, nullptr, Width::kBytes};
}

// Onto the residual stream.
LinearTask residual_task(const srt_matrix &w, float *y, size_t ldy, float scale) {
  LinearTask made = task(w, y, ldy, Output::kAdd);
  made.scale = scale;
  return made;
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
      widest_dense_(widest_dense(model)),
      kernels_(kernels),
      pool_(threads),
      wanted_(wanted_by(model, kernels)),
      inputs_(threads + 1),
      scratch_(threads),
      mixtures_(model_, kernels, threads) {
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
  clock_.start();
  batch_ = &batch;
  forbidden_ = -1;
  for (size_t i = 0; i < windows_.size(); i++)
    plans_[i].make(
        {model_.heads, model_.kv_heads, model_.head_dim, windows_[i], pool_.size()}, batch);
  reserve(batch);
  clock_.tick(kOther);
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
  const int widest = std::max({model_.hidden, q_size(), widest_dense_, mixtures_.widest()});
  x_.need(rows * model_.hidden, growths_);
  qkv_.need(rows * qkv_size(), growths_);
  attended_.need(rows * q_size(), growths_);
  gated_.need(rows * widest_dense_, growths_);
  up_.need(rows * widest_dense_, growths_);
  if (wanted_.tiles) gated_tiles_.need(tiled_elements(rows, widest_dense_), growths_);
  mixtures_.reserve(batch.num_tokens, growths_);
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
      std::max({linear_scratch_bytes(widest), mixtures_.scratch_bytes(), sample_scratch_bytes(model_.vocab),
                attention_scratch_floats(model_.heads, model_.head_dim) * sizeof(float)});
  for (Buffer<uint8_t> &scratch : scratch_) scratch.need(bytes, growths_);
}

int Engine::max_phases(const srt_batch &batch) const {
  const int chunks = (batch.num_logprobs + kLogprobRows - 1) / kLogprobRows;
  return model_.num_layers * (kLayerPhases + mixtures_.max_phases(batch.num_tokens)) +
         chunks * kLogprobPhases + kOtherPhases;
}

// ---- the layers ---------------------------------------------------------------------------------

void Engine::forward(Member &member) {
  each_row(member, batch_->num_tokens, [this](int token) { embed_token(token); });
  clock_.tick(member, kEmbed);
  for (int i = 0; i < model_.num_layers; i++) {
    attention_block(member, layers_[i]);
    if (layers_[i].experts)
      mixtures_.run(member, i, layers_[i], {x_.get(), batch_->num_tokens, inputs_, clock_},
                    scratch_[member.thread()].get());
    else
      mlp_block(member, layers_[i]);
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
    embed_id(batch_->input_ids[token], x);
  const int half = model_.head_dim / 2;
  float *cosines = cos_sin_.get() + size_t(token) * model_.head_dim, *sines = cosines + half;
  for (int i = 0; i < half; i++) {
    const float angle = static_cast<float>(batch_->positions[token]) * model_.rope_freqs[i];
    cosines[i] = std::cos(angle);
    sines[i] = std::sin(angle);
  }
}

void Engine::embed_id(int32_t id, float *x) const {
  srt_unpack_row(&model_.embed, id, x);
  if (model_.embed_scale != 1) kernels_.scale(x, model_.hidden, model_.embed_scale);
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
  clock_.tick(member, kRope);
  attend(member, layer);
  const float *attended = attended_.get();
  project(member, rows, q_size(), nullptr,
          [&](int row) { return attended + size_t(row) * q_size(); },
          {residual_task(layer.o, x, model_.hidden, model_.residual_scale)}, kOut);
}

void Engine::rotate_and_store(const srt_layer &layer, int token) {
  float *q = qkv_.get() + size_t(token) * qkv_size(), *k = q + q_size(), *v = k + kv_size();
  const float *cos_sin = cos_sin_.get() + size_t(token) * model_.head_dim;
  normalise_heads(layer.q_norm, model_.heads, q);
  normalise_heads(layer.k_norm, model_.kv_heads, k);
  kernels_.rope(q, cos_sin, model_.heads + model_.kv_heads, model_.head_dim);
  kernels_.scale(q, q_size(), model_.attn_scale * kLog2E);
  store_kv(k, layer.k_pool, batch_->out_slots[token]);
  store_kv(v, layer.v_pool, batch_->out_slots[token]);
}

void Engine::normalise_heads(const float *weight, int heads, float *x) const {
  if (weight == nullptr) return;
  const int norms = model_.whole_norms ? 1 : heads, size = heads * model_.head_dim / norms;
  for (int i = 0; i < norms; i++)
    kernels_.rms_norm(x + i * size, weight, size, model_.rms_eps, x + i * size);
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
  clock_.tick(member, kAttention);
  if (plan.folds.empty()) return;
  member.share(static_cast<int>(plan.folds.size()),
               [&](int i) { kernels_.fold(call, plan.queries[plan.folds[i]]); });
  clock_.tick(member, kFold);
}

void Engine::mlp_block(Member &member, const srt_layer &layer) {
  const int rows = batch_->num_tokens, width = model_.intermediate;
  float *x = x_.get(), *gated = gated_.get(), *up = up_.get();
  const auto hidden_row = [&](int row) { return x + size_t(row) * model_.hidden; };
  LinearTask both = task(layer.gate, gated, width, Output::kSiluMul);
  both.w[1] = &layer.up;
  LinearTask down = residual_task(layer.down, x, model_.hidden, model_.residual_scale);
  if (layer.gate.format == layer.up.format && is_tiled(layer.up.format) &&
      is_tiled(layer.down.format)) {
    both.output = Output::kSiluTiles;
    both.tiles = gated_tiles_.get();
    project(member, rows, model_.hidden, layer.mlp_norm, hidden_row, {both}, kGateUp);
    down.x.tiles = gated_tiles_.get();
    down.x.columns = tile_columns(rows);
    down.rows = rows;
    linear_phase(member, kernels_, &down, 1, scratch_[member.thread()].get(), [] {});
    return clock_.tick(member, kDown);
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

float *Engine::scaled_logits(int row) const {
  float *logits = logits_.get() + size_t(row) * padded(model_.vocab);
  if (model_.logit_scale != 1) kernels_.scale(logits, padded(model_.vocab), model_.logit_scale);
  return logits;
}

void Engine::prompt_logprobs(Member &member) {
  const srt_batch &batch = *batch_;
  for (int first = 0; first < batch.num_logprobs; first += kLogprobRows) {
    const int rows = std::min(kLogprobRows, batch.num_logprobs - first);
    head(member, batch.logprob_tokens + first, rows);
    SampleScratch scratch = sample_scratch(scratch_[member.thread()].get(), model_.vocab);
    member.share(rows, [&](int row) {
      const float *logits = scaled_logits(row);
      score_batch_row(kernels_, batch, first + row, logits, model_.vocab, scratch);
    });
    clock_.tick(member, kSample);
  }
}

void Engine::sample(Member &member) {
  const srt_batch &batch = *batch_;
  if (batch.num_samples == 0) return;
  head(member, batch.sample_tokens, batch.num_samples);
  SampleScratch scratch = sample_scratch(scratch_[member.thread()].get(), model_.vocab);
  member.share(batch.num_samples, [&](int row) {
    float *logits = scaled_logits(row);
    if (!sample_batch_row(kernels_, batch, row, logits, model_.vocab, scratch)) forbidden_ = row;
  });
  clock_.tick(member, kSample);
}

// ---- helpers ------------------------------------------------------------------------------------

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
    task.rows = rows;
    wanted.add(task.w[0]->format, task.width);
  }
  const InputRows input{kernels_, to, wanted, weight, model_.rms_eps, rows, k};
  const auto prepare = [&](int first, int last) { input.prepare(first, last, x_row); };
  if (!is_private) each_part(member, rows, wanted.tiles ? kTileRows : 1, prepare);
  clock_.tick(member, kNorm);
  linear_phase(member, kernels_, filled, count, scratch_[member.thread()].get(), [&] {
    if (is_private) prepare(0, rows);
  });
  clock_.tick(member, phase);
}

}  // namespace srt
