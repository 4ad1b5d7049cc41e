// The whole step of a Llama-family model, on the engine's own threads.
#pragma once
#include <array>
#include <atomic>
#include <initializer_list>
#include <vector>

#include "attention_plan.h"
#include "kernels.h"
#include "thread_pool.h"
#include "workspace.h"

namespace srt {

enum Phase {
  kEmbed, kNorm, kQkv, kRope, kAttention, kFold, kOut, kGateUp, kDown, kHead, kSample, kOther,
};

class Engine {
 public:
  Engine(const srt_model &model, int threads, const Kernels &kernels);

  // 0, or -1 and an error text.
  int step(const srt_batch &batch);
  // Seconds per phase since the last call, as thread 0 saw them.
  void take_profile(double *seconds);
  int64_t growths() const { return growths_; }

 private:
  // A linear layer's input, shared by all threads or one thread's own.
  struct Input {
    Buffer<float> normed;
    ActivationBuffer quantized;
  };

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
  template <class Row>
  void each_row(Member &member, int rows, Row row);
  // Calls part(first, last) for parts of [0, rows): `unit` rows at a time, the last perhaps fewer.
  template <class Rows>
  void each_part(Member &member, int rows, int unit, Rows part);
  void tick(const Member &member, Phase phase);

  void embed_token(int token);
  void rotate_and_store(const srt_layer &layer, int token);
  void store_kv(const float *x, void *pool, int32_t slot);
  const AttentionPlan &plan_of(const srt_layer &layer) const;
  int max_phases(const srt_batch &batch) const;

  int q_size() const { return model_.heads * model_.head_dim; }
  int kv_size() const { return model_.kv_heads * model_.head_dim; }
  int qkv_size() const { return q_size() + 2 * kv_size(); }

  const srt_model model_;
  const std::vector<srt_layer> layers_;
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
  Buffer<float> gated_;     // [T, intermediate]
  Buffer<bf16> gated_tiles_;  // the same as the activations of weights in tiles
  Buffer<float> up_;        // [T, intermediate], for gate and up of different formats
  Buffer<float> cos_sin_;   // [T, head_dim]
  Buffer<float> partials_;
  Buffer<float> logits_;  // [rows, padded vocab]
  const Wanted wanted_;        // of all layers
  std::vector<Input> inputs_;  // the shared one, then one for each thread
  std::vector<Buffer<uint8_t>> scratch_;
  int64_t growths_ = 0;

  std::array<double, SRT_NUM_PHASES> seconds_{};
  double ticked_ = 0;
};

}  // namespace srt
