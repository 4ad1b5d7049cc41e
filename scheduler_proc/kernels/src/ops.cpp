// The C ABI around the engine, and single operations for tests and benchmarks.
#include <algorithm>
#include <cmath>
#include <exception>
#include <vector>

#include "batch_check.h"
#include "engine.h"
#include "error.h"
#include "linear_phase.h"
#include "sample_batch.h"

using srt::set_error;

struct srt_engine {
  srt::Engine engine;
};

// A pool with the kernels of one level.
struct srt_pool {
  srt_pool(int threads, const srt::Kernels &kernels_, int32_t activation_bits_)
      : pool(threads), kernels(kernels_), activation_bits(activation_bits_) {}
  srt::ThreadPool pool;
  const srt::Kernels &kernels;
  const int32_t activation_bits;
};

namespace {

// No C++ exception may cross into the caller: it becomes an error text.
template <class Call>
int32_t guarded(Call call) {
  try {
    return call();
  } catch (const std::exception &error) {
    return set_error("%s", error.what());
  }
}

using Member = srt::ThreadPool::Member;

// body(member) on every thread of the pool: an operation of a few phases.
template <class Body>
void on_all(srt_pool *pool, Body body) {
  constexpr int kMaxPhases = 4;
  pool->pool.run(body, kMaxPhases);
}

// Linear layers over x [m, k], quantised if the weights are, into y [m, n].
int32_t run_linear(srt_pool *pool, const srt_matrix *w, const srt_matrix *up, const float *x,
                   int32_t m, float *y) {
  const int k = w->k, width = srt::padded(w->n);
  if ((w->bias || (up && up->bias)) && w->n % srt::kBlock)
    return set_error("a bias needs a multiple of 16 outputs");
  int64_t growths = 0;
  srt::ActivationBuffer quantized;
  const srt::Width width_of_x = pool->kernels.width(w->format, pool->activation_bits);
  srt::Wanted wanted;
  wanted.add(w->format, width_of_x);
  if (wanted.tiles && !pool->kernels.tile)
    return set_error("the level %s has no formats in tiles", pool->kernels.name);
  quantized.need(m, k, wanted, growths);
  std::vector<float> wide(size_t(m) * width);
  const srt::Output output = up ? srt::Output::kSiluMul : srt::Output::kStore;
  const srt::LinearTask task{{w, up}, quantized.view(x, m), wide.data(), size_t(width), output,
                             nullptr, width_of_x, 1, m};
  on_all(pool, [&](Member &member) {
    std::vector<uint8_t> scratch(srt::linear_scratch_bytes(k) + 64);
    auto *aligned = scratch.data() + (-reinterpret_cast<uintptr_t>(scratch.data()) & 63);
    member.share(wanted.codes() ? m : 0, [&](int row) {
      quantized.quantize(pool->kernels, wanted, x + size_t(row) * k, row, k);
    });
    member.share(wanted.tiles ? (m + srt::kTileRows - 1) / srt::kTileRows : 0, [&](int tile) {
      const int first = tile * srt::kTileRows, count = std::min(m - first, srt::kTileRows);
      const float *rows[srt::kTileRows];
      for (int i = 0; i < count; i++) rows[i] = x + size_t(first + i) * k;
      quantized.tile(pool->kernels, rows, first, count, m, k);
    });
    srt::LinearTask own = task;
    srt::linear_phase(member, pool->kernels, &own, 1, aligned, [] {});
    if (pool->kernels.release) pool->kernels.release();
  });
  for (int row = 0; row < m; row++)
    std::copy_n(wide.data() + size_t(row) * width, w->n, y + size_t(row) * w->n);
  return 0;
}

}  // namespace

// ---- engine -------------------------------------------------------------------------------------

srt_engine *srt_engine_create(const srt_model *model, int32_t threads, const char *isa) {
  try {
    const srt::Kernels *kernels = srt::find_kernels(isa);
    if (kernels == nullptr || srt::check_model(*model, kernels->tile != nullptr) != 0) return nullptr;
    if (threads < 1) return set_error("threads must be positive"), nullptr;
    return new srt_engine{{*model, threads, *kernels}};
  } catch (const std::exception &error) {
    return set_error("%s", error.what()), nullptr;
  }
}

void srt_engine_destroy(srt_engine *engine) { delete engine; }

int32_t srt_engine_step(srt_engine *engine, const srt_batch *batch) {
  return guarded([&] { return engine->engine.step(*batch); });
}

void srt_engine_profile(srt_engine *engine, double *seconds) {
  engine->engine.take_profile(seconds);
}

const char *srt_phase_name(int32_t phase) {
  static const char *const names[SRT_NUM_PHASES] = {
      "embed", "norm+quantize", "qkv",     "rope+kv", "attention", "fold",
      "o",     "router",        "gate_up", "down",    "combine",   "head",
      "sample", "plan"};
  return phase >= 0 && phase < SRT_NUM_PHASES ? names[phase] : nullptr;
}

void srt_engine_expert_counts(const srt_engine *engine, int64_t *counts) {
  engine->engine.copy_expert_counts(counts);
}

int64_t srt_engine_growths(const srt_engine *engine) { return engine->engine.growths(); }

// ---- single operations --------------------------------------------------------------------------

srt_pool *srt_pool_create(int32_t threads, const char *isa, int32_t activation_bits) {
  try {
    const srt::Kernels *kernels = srt::find_kernels(isa);
    if (kernels == nullptr || srt::check_activation_bits(activation_bits) != 0) return nullptr;
    return new srt_pool(std::max(1, threads), *kernels, activation_bits);
  } catch (const std::exception &error) {
    return set_error("%s", error.what()), nullptr;
  }
}

void srt_pool_destroy(srt_pool *pool) { delete pool; }

int32_t srt_op_linear(srt_pool *pool, const srt_matrix *w, const float *x, int32_t m, float *y) {
  return guarded([&] { return run_linear(pool, w, nullptr, x, m, y); });
}

int32_t srt_op_gate_up(srt_pool *pool, const srt_matrix *gate, const srt_matrix *up, const float *x,
                       int32_t m, float *y) {
  if (gate->format != up->format) return set_error("gate and up have different formats");
  return guarded([&] { return run_linear(pool, gate, up, x, m, y); });
}

int32_t srt_op_attention(srt_pool *pool, const srt_model *model, const srt_layer *layer,
                         const srt_batch *batch, const float *q, float *out) {
  return guarded([&] {
    const int width = model->heads * model->head_dim;
    std::vector<float> scaled(q, q + size_t(batch->num_tokens) * width);
    for (float &value : scaled) value *= model->attn_scale * srt::kLog2E;
    srt::AttentionPlan plan;
    plan.make({model->heads, model->kv_heads, model->head_dim, layer->window, pool->pool.size()},
              *batch);
    std::vector<float> partials(size_t(plan.num_records) * srt::record_floats(model->head_dim));
    const srt::AttentionCall call{model->heads,        model->kv_heads, model->head_dim,
                                  model->kv_format,    model->num_slots,
                                  srt::is_tiled(layer->q.format),
                                  layer->k_pool,       layer->v_pool,
                                  scaled.data(),       size_t(width),   out,
                                  size_t(width),       plan.queries.data(), partials.data()};
    on_all(pool, [&](Member &member) {
      std::vector<float> scratch(srt::attention_scratch_floats(model->heads, model->head_dim));
      member.share(static_cast<int>(plan.units.size()), [&](int unit) {
        pool->kernels.attend(call, plan.units[unit], scratch.data());
      });
      member.share(static_cast<int>(plan.folds.size()), [&](int i) {
        pool->kernels.fold(call, plan.queries[plan.folds[i]]);
      });
      if (pool->kernels.release) pool->kernels.release();
    });
    return 0;
  });
}

int32_t srt_op_rms_norm(srt_pool *pool, const float *x, const float *weight, int32_t m, int32_t k,
                        float eps, float *y) {
  on_all(pool, [&](Member &member) {
    member.share(m, [&](int row) {
      pool->kernels.rms_norm(x + size_t(row) * k, weight, k, eps, y + size_t(row) * k);
    });
  });
  return 0;
}

int32_t srt_op_rope(srt_pool *pool, float *x, const int32_t *positions, const float *freqs,
                    int32_t m, int32_t heads, int32_t head_dim) {
  return guarded([&] {
    const int half = head_dim / 2;
    on_all(pool, [&](Member &member) {
      std::vector<float> cos_sin(head_dim);
      member.share(m, [&](int row) {
        for (int i = 0; i < half; i++) {
          const float angle = static_cast<float>(positions[row]) * freqs[i];
          cos_sin[i] = std::cos(angle);
          cos_sin[half + i] = std::sin(angle);
        }
        pool->kernels.rope(x + size_t(row) * heads * head_dim, cos_sin.data(), heads, head_dim);
      });
    });
    return 0;
  });
}

int32_t srt_op_sample(srt_pool *pool, float *logits, int32_t vocab, const srt_batch *batch) {
  if (srt::check_sampling(*batch, vocab) != 0) return -1;
  return guarded([&] {
    std::atomic<int> forbidden{-1};
    on_all(pool, [&](Member &member) {
      std::vector<double> memory(srt::sample_scratch_bytes(vocab) / sizeof(double) + 1);
      srt::SampleScratch scratch = srt::sample_scratch(memory.data(), vocab);
      member.share(batch->num_samples, [&](int row) {
        if (!srt::sample_batch_row(pool->kernels, *batch, row, logits + size_t(row) * vocab, vocab,
                                   scratch))
          forbidden = row;
      });
    });
    const int row = forbidden.load();
    return row < 0 ? 0 : set_error("sample %d: its masks allow no token", row);
  });
}

uint64_t srt_op_read(srt_pool *pool, const void *data, size_t bytes) {
  std::atomic<uint64_t> total{0};
  constexpr size_t kPiece = size_t(1) << 20;
  const int pieces = static_cast<int>((bytes + kPiece - 1) / kPiece);
  on_all(pool, [&](Member &member) {
    uint64_t mine = 0;
    member.share(pieces, [&](int piece) {
      const size_t first = piece * kPiece, size = std::min(bytes - first, kPiece);
      mine += pool->kernels.read_bytes(static_cast<const char *>(data) + first, size / 512 * 512);
    });
    total += mine;
  });
  return total;
}
