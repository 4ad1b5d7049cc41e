// The whole step of a Llama-family model, on the engine's own threads.
#pragma once
#include <atomic>
#include <initializer_list>
#include <vector>

#include "attention_plan.h"
#include "kernels.h"
#include "mixture.h"
#include "phases.h"
#include "thread_pool.h"
#include "workspace.h"

namespace srt {

class Engine {
 public:
  Engine(const srt_model &model, int threads, const Kernels &kernels);

  // 0, or -1 and an error text.
  int step(const srt_batch &batch);
  // Seconds per phase since the last call, as thread 0 saw them.
  void take_profile(double *seconds) { clock_.take(seconds); }
  // See srt_engine_expert_counts.
  void copy_expert_counts(int64_t *counts) const { mixtures_.copy_counts(counts); }
  int64_t growths() const { return growths_; }

 private:
  void reserve(const srt_batch &batch);

  using Member = ThreadPool::Member;

  // These run on every thread.
  void forward(Member &member);
  void attention_block(Member &member, const srt_layer &layer);
  void mlp_block(Member &member, const srt_layer &layer);
  void attend(Member &member, const srt_layer &layer);
  void head(Member &member, const int32_t *tokens, int rows);
  void sample(Member &member);
  void prompt_logprobs(Member &member);

  // Linear layers of one phase over rows [0, rows) of x (row i is x_row(i), k inputs), normalised
  // if there is a `weight`. The tasks' activations are filled in.
  template <class RowOf>
  void project(Member &member, int rows, int k, const float *weight, RowOf x_row,
               std::initializer_list<LinearTask> tasks, Phase phase);

  void embed_token(int token);
  void embed_id(int32_t id, float *x) const;
  void normalise_heads(const float *weight, int heads, float *x) const;
  void rotate_and_store(const srt_layer &layer, int token);
  void store_kv(const float *x, void *pool, int32_t slot);
  const AttentionPlan &plan_of(const srt_layer &layer) const;
  // A row of logits_, made what samples are drawn from.
  float *scaled_logits(int row) const;
  int max_phases(const srt_batch &batch) const;

  int q_size() const { return model_.heads * model_.head_dim; }
  int kv_size() const { return model_.kv_heads * model_.head_dim; }
  int qkv_size() const { return q_size() + 2 * kv_size(); }

  const srt_model model_;
  const std::vector<srt_layer> layers_;
  const int widest_dense_;  // the intermediate size, if a layer is dense
  const Kernels &kernels_;
  ThreadPool pool_;
  std::vector<int> windows_;          // the distinct ones of the layers
  std::vector<AttentionPlan> plans_;  // of this step, one for each window
  const srt_batch *batch_ = nullptr;
  std::atomic<int> forbidden_{-1};  // a sample whose masks allow no token

  // Workspace, sized by reserve().
  Buffer<float> x_;         // [T, hidden] the residual stream
  Buffer<float> qkv_;       // [T, q + k + v]
  Buffer<float> attended_;  // [T, q]
  Buffer<float> gated_;     // [T, intermediate], for dense layers
  Buffer<bf16> gated_tiles_;  // the same as the activations of weights in tiles
  Buffer<float> up_;        // [T, intermediate], for gate and up of different formats
  Buffer<float> cos_sin_;   // [T, head_dim]
  Buffer<float> partials_;
  Buffer<float> logits_;  // [rows, padded vocab]
  const Wanted wanted_;        // of all layers
  std::vector<Input> inputs_;  // the shared one, then one for each thread
  std::vector<Buffer<uint8_t>> scratch_;
  int64_t growths_ = 0;

  PhaseClock clock_;
  Mixtures mixtures_;
};

}  // namespace srt
