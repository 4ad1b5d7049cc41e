// The router's rule, in float32 and in one order of operations, whatever else is in the batch.
#include "experts.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace srt {

namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

void softmax(float *x, int count) {
  const float most = *std::max_element(x, x + count);
  float sum = 0;
  for (int i = 0; i < count; i++) sum += x[i] = std::exp(x[i] - most);
  for (int i = 0; i < count; i++) x[i] /= sum;
}

void score(const srt_router_rule &rule, float *x, int count) {
  if (rule.sigmoid)
    std::transform(x, x + count, x, sigmoid);
  else
    softmax(x, count);
}

// The indices of the `wanted` <= count largest values, the largest first, among equals the lowest
// index.
void largest(const float *values, int count, int wanted, int32_t *indices) {
  int found = 0;
  for (int i = 0; i < count; i++) {
    if (found == wanted && !(values[i] > values[indices[found - 1]])) continue;
    int at = found < wanted ? found++ : found - 1;
    for (; at > 0 && values[i] > values[indices[at - 1]]; at--) indices[at] = indices[at - 1];
    indices[at] = i;
  }
}

// Makes the values of experts outside the best groups smaller than all others.
void keep_best_groups(const srt_router_rule &rule, float *values, int count) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  const int size = count / rule.groups;
  float worth[kMaxGroups] = {};
  int32_t best[kMaxGroups] = {};
  for (int g = 0; g < rule.groups; g++) {
    int32_t two[2] = {};
    const float *group = values + g * size;
    largest(group, size, std::min(2, size), two);
    worth[g] = size < 2 ? group[0] : group[two[0]] + group[two[1]];
  }
  largest(worth, rule.groups, rule.used_groups, best);
  for (int g = 0; g < rule.groups; g++)
    if (std::find(best, best + rule.used_groups, g) == best + rule.used_groups)
      std::fill_n(values + g * size, size, kLeast);
}

}  // namespace

void choose_experts(const srt_experts &experts, const float *logits, float *work, int32_t *ids,
                    float *weights) {
  const srt_router_rule &rule = experts.rule;
  const int count = experts.count, used = experts.used;
  float *scores = work, *by = work + count;
  for (int e = 0; e < count; e++)
    scores[e] = logits[e] + (experts.router_bias ? experts.router_bias[e] : 0);
  if (!rule.by_logits) score(rule, scores, count);
  for (int e = 0; e < count; e++)
    by[e] = scores[e] + (experts.correction ? experts.correction[e] : 0);
  if (rule.groups > 1) keep_best_groups(rule, by, count);
  largest(by, count, used, ids);
  std::sort(ids, ids + used);
  for (int i = 0; i < used; i++) weights[i] = scores[ids[i]];
  if (rule.by_logits) score(rule, weights, used);
  float sum = 0;
  for (int i = 0; i < used; i++) sum += weights[i];
  const float scale = rule.normalised && sum != 0 ? rule.scale / sum : rule.scale;
  for (int i = 0; i < used; i++) weights[i] *= scale;
}

float shared_weight(const srt_experts &experts, const float *x, int hidden) {
  if (experts.shared_score == nullptr) return 1;
  float sums[kBlock] = {};  // in turns, which a compiler can keep in registers
  for (int i = 0; i < hidden; i += kBlock)
    for (int lane = 0; lane < kBlock; lane++)
      sums[lane] += x[i + lane] * experts.shared_score[i + lane];
  float sum = 0;
  for (const float part : sums) sum += part;
  return sigmoid(sum);
}

void ExpertLists::need(size_t tokens, int count, int used, int64_t &growths) {
  experts_.need(tokens * used, growths);
  pairs_.need(tokens * used, growths);
  weights_.need(tokens * used, growths);
  tokens_.need(tokens * used, growths);
  firsts_.need(count + 1, growths);
  filled_.need(count, growths);
}

void ExpertLists::sort(int tokens, int count, int used) {
  const int pairs = tokens * used;
  const int32_t *experts = experts_.get();
  int32_t *firsts = firsts_.get(), *next = filled_.get();
  std::fill_n(firsts, count + 1, 0);
  for (int i = 0; i < pairs; i++) firsts[experts[i] + 1]++;
  for (int e = 0; e < count; e++) {
    next[e] = firsts[e];
    firsts[e + 1] += firsts[e];
  }
  for (int i = 0; i < pairs; i++) {
    const int pair = next[experts[i]]++;
    pairs_.get()[i] = pair;
    tokens_.get()[pair] = i / used;
  }
}

}  // namespace srt
