// The layers' mixtures of experts: in each, what a step computes in place of an MLP.
//
// Tokens are sorted by expert, so that an expert's weights are read once for all its tokens, and those
// of experts that no token uses are not read. A token's sum is taken in ascending order of its
// experts, the shared one last, whatever the batch.
#pragma once
#include <atomic>
#include <vector>

#include "experts.h"
#include "linear_phase.h"
#include "phases.h"
#include "thread_pool.h"
#include "workspace.h"

namespace srt {

// The matrices of an expert.
struct MlpWeights {
  const srt_matrix *gate, *up, *down;
};

// A mixture's first expert, which has the formats of all, and then the shared one if there is any.
std::vector<MlpWeights> mlps_of(const srt_experts &experts);

// How experts of these formats are computed.
struct MlpKind {
  MlpKind() = default;
  MlpKind(const MlpWeights &mlp, const srt_model &model, const Kernels &kernels);

  int width = 0;         // 0: there is none
  bool is_joined = true;  // gate and up have one format, so SiLU is taken while they are computed
  bool is_direct = true;  // what they make is written as the tiles that down reads
  bool has_floats = false;  // gate or up are multiplied with floats
  Width gate = Width::kBytes, up = Width::kBytes, down = Width::kBytes;
  Wanted inputs, middle;  // of gate and up; of down, unless it is direct
};

// What experts read and write: of some rows, which are pairs of a token and an expert, or tokens.
struct MlpRows {
  void need(const MlpKind &kind, size_t rows, size_t hidden, int64_t &growths);

  Buffer<float> gated, up;  // [rows, width]
  Buffer<bf16> tiles;       // the same as activations of weights in tiles
  ActivationBuffer middle;  // of down
  Buffer<float> out;        // [rows, hidden]
};

class Mixtures {
 public:
  // What `run` shares with the engine.
  struct Step {
    float *x;  // [rows, hidden] the residual stream
    int rows;
    std::vector<Input> &inputs;  // the shared one, then one for each thread
    PhaseClock &clock;
  };

  Mixtures(const srt_model &model, const Kernels &kernels, int threads);

  int widest() const { return widest_; }
  // Phases that `run` takes for so many tokens, at most.
  int max_phases(int tokens) const { return kPanelPhases * panels_of(tokens); }
  size_t scratch_bytes() const { return choice_floats(most_experts_) * sizeof(float); }
  void reserve(int tokens, int64_t &growths);
  // Adds the mixture of layer `index` to x. Every thread of a step calls it; `scratch` is the thread's
  // own.
  void run(ThreadPool::Member &member, int index, const srt_layer &layer, const Step &step,
           uint8_t *scratch);
  // See srt_engine_expert_counts.
  void copy_counts(int64_t *counts) const;

 private:
  friend class MixtureRun;

  static constexpr int kPanelPhases = 12;
  // A panel has at least so many tokens, and so many for each expert on average. What experts read
  // and write takes memory by the token, and an expert with this many rows is no faster with more.
  static constexpr int kPanelTokens = 512, kExpertTokens = 128;

  struct Layer {
    MlpKind experts, shared;
  };
  // Of a thread, for a step of one token.
  struct Own {
    Buffer<LinearTask> tasks;
    ActivationBuffer middle, shared_middle;
  };

  // Tokens are taken in so many panels; 0 without mixtures.
  int panels_of(int tokens) const;

  const srt_model &model_;
  const Kernels &kernels_;
  std::vector<Layer> layers_;
  int widest_ = 0, most_experts_ = 0, most_used_ = 0;
  MlpKind widest_experts_, widest_shared_;  // of all layers: the widest, with all that is wanted

  Buffer<float> logits_;          // [T, experts]
  Buffer<float> shared_weights_;  // [T]
  ExpertLists lists_;
  Buffer<int32_t> first_tiles_;  // [experts] rows of tiles before an expert's
  Buffer<LinearTask> gate_up_, down_;
  int num_gate_up_ = 0, num_down_ = 0;
  Buffer<float> gathered_;  // [pairs, hidden] inputs of float weights
  ActivationBuffer quantized_;
  MlpRows pairs_, shared_;
  std::vector<Own> own_;
  std::vector<std::atomic<int64_t>> counts_;  // [layers, most_experts_]
};

}  // namespace srt
