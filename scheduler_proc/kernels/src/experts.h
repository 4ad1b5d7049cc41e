// Which experts a token uses, and lists of tokens by expert.
#pragma once
#include "workspace.h"

namespace srt {

constexpr int kMaxUsed = 64;    // experts of a token
constexpr int kMaxGroups = 64;  // of experts

// Floats that `choose_experts` needs to work with.
constexpr size_t choice_floats(int count) { return 2 * size_t(count); }

// The experts of a token by the router's logits [count]: `used` distinct ids in ascending order, and
// their weights. Logits that are not numbers give some experts, and weights that are not numbers.
void choose_experts(const srt_experts &experts, const float *logits, float *work, int32_t *ids,
                    float *weights);

// The weight of the shared expert for a token whose normalised input is x [hidden].
float shared_weight(const srt_experts &experts, const float *x, int hidden);

// Pairs of a token and one of its experts, sorted by expert and then by token.
class ExpertLists {
 public:
  void need(size_t tokens, int count, int used, int64_t &growths);
  // From the tokens' experts; `count` and `used` as in srt_experts.
  void sort(int tokens, int count, int used);

  // Of token t, to be filled in before `sort`: its experts in ascending order.
  int32_t *experts_of(int t, int used) const { return experts_.get() + size_t(t) * used; }
  // The pairs of token t, in the order of its experts.
  const int32_t *pairs_of(int t, int used) const { return pairs_.get() + size_t(t) * used; }
  float *weights_of(int t, int used) const { return weights_.get() + size_t(t) * used; }
  int token_of(int pair) const { return tokens_.get()[pair]; }
  // Pairs [first_of(e), first_of(e + 1)) are expert e's.
  int first_of(int expert) const { return firsts_.get()[expert]; }
  int size_of(int expert) const { return first_of(expert + 1) - first_of(expert); }

 private:
  Buffer<int32_t> experts_, pairs_;  // [tokens, used]
  Buffer<float> weights_;            // [tokens, used]
  Buffer<int32_t> tokens_;           // [pairs]
  Buffer<int32_t> firsts_;           // [experts + 1]
  Buffer<int32_t> filled_;           // [experts]
};

}  // namespace srt
