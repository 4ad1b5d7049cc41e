// The sampler: logits of one row to a token id. Included once per instruction-set level; the engine
// calls sample_row through the kernel table.
//
// Semantics are those of scheduler_proc/sampling/sampling.py. A row's token is a function of that row
// alone, and every float64 sum has a fixed order. In id order: a tile of 256 tokens is 16 lanes
// (token i in lane i % 16), each summed in id order, then added as a tree; tiles follow each
// other, and within the tile that holds the draw tokens are added one by one. In rank order:
// while more than kSortedAtOnce ranks are open they are halved, a half is added up as four
// interleaved sums, and the last piece's ranks are added one by one. Nothing is sorted that the
// draw does not need, and tokens too light to be kept never reach the ranking.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "sampling.h"

namespace srt::SRT_ISA_NS {
namespace sampler {

constexpr float kInfinity = __builtin_inff();
constexpr float kGreedyTemperature = 1e-6f;
constexpr int kSortedAtOnce = 128;

// The tokens that may be drawn, in id order.
struct Row {
  const float *values;
  int count;
  const uint32_t *words;  // a bit per value, zero after `count`; NULL: all are allowed
  const int32_t *ids;     // id of each value; NULL: its index
  int vocab;              // tokens in all, allowed or not

  int tiles() const { return sample_tiles(count); }
  bool allows(int i) const { return !words || (words[i / 32] >> (i % 32) & 1); }
};

// A weight and its index: the larger key ranks first (weights are not negative). The type is this
// level's own so that no template of the standard library is shared between levels.
struct Key {
  uint64_t bits;

  float weight() const { return float_from_bits(static_cast<uint32_t>(bits >> 32)); }
  int index() const { return static_cast<int>(~static_cast<uint32_t>(bits)); }
  bool operator<(Key other) const { return bits > other.bits; }  // sorts into rank order
};

SRT_INLINE Key make_key(float weight, int index) {
  return {static_cast<uint64_t>(bits_of(weight)) << 32 | ~static_cast<uint32_t>(index)};
}

// ---- which tokens are allowed -------------------------------------------------------------------

// The mask without the suppressed ids, padded with zeros to whole tiles; returns how many are left.
static int merge_masks(int vocab, const SampleParams &params, uint32_t *words) {
  const int used = (vocab + 31) / 32, padded = sample_tiles(vocab) * (kSampleTile / 32);
  for (int i = 0; i < used; i++) words[i] = params.mask ? params.mask[i] : ~0u;
  if (vocab % 32) words[used - 1] &= (1u << (vocab % 32)) - 1;
  for (int i = used; i < padded; i++) words[i] = 0;
  for (int i = 0; i < params.num_suppress; i++) {
    const int id = params.suppress[i];
    if (id >= 0 && id < vocab) words[id / 32] &= ~(1u << (id % 32));
  }
  int allowed = 0;
  for (int i = 0; i < used; i++) allowed += __builtin_popcount(words[i]);
  return allowed;
}

static Row gather(const float *logits, int vocab, int allowed, SampleScratch &scratch) {
  int n = 0;
  for (int i = 0; i * 32 < vocab; i++) {
    for (uint32_t word = scratch.words[i]; word; word &= word - 1) {
      const int id = i * 32 + __builtin_ctz(word);
      scratch.ids[n] = id;
      scratch.values[n++] = logits[id];
    }
  }
  return {scratch.values, allowed, nullptr, scratch.ids, vocab};
}

// A row with count 0 if nothing is allowed.
static Row allowed_row(const float *logits, int vocab, const SampleParams &params,
                       SampleScratch &scratch) {
  if (!params.mask && !params.num_suppress) return {logits, vocab, nullptr, nullptr, vocab};
  const int allowed = merge_masks(vocab, params, scratch.words);
  if (allowed <= vocab / kSampleSparsity) return gather(logits, vocab, allowed, scratch);
  return {logits, vocab, scratch.words, nullptr, vocab};
}

// ---- passes over tiles --------------------------------------------------------------------------

// Copies `values` to `out` (which may be the same), with -inf where the bit is not set.
static void apply_mask(const float *values, const uint32_t *words, float *out) {
  uint32_t bits[32];
  for (int i = 0; i < 32; i++) bits[i] = 1u << i;
  for (int j = 0; j < kSampleTile / 32; j++) {
    for (int i = 0; i < 32; i++) {
      const float value = values[32 * j + i];
      out[32 * j + i] = words[j] & bits[i] ? value : -kInfinity;
    }
  }
}

// Tile `t` with -inf for tokens that may not be drawn, in place or in `buffer`; NULL if none may.
static const float *read_tile(const Row &row, int t, float *buffer) {
  const float *values = row.values + t * kSampleTile;
  const int left = row.count - t * kSampleTile;
  if (left < kSampleTile) {
    for (int i = 0; i < kSampleTile; i++) buffer[i] = i < left ? values[i] : -kInfinity;
    values = buffer;
  }
  if (!row.words) return values;
  const uint32_t *words = row.words + t * (kSampleTile / 32);
  uint32_t all = ~0u, any = 0;
  for (int j = 0; j < kSampleTile / 32; j++) all &= words[j], any |= words[j];
  if (!any) return nullptr;
  if (all == ~0u) return values;
  apply_mask(values, words, buffer);
  return buffer;
}

struct Peak {
  float value;
  int index;    // the lowest with that value; undefined unless finite
  bool finite;  // the maximum is, and nothing is NaN
};

// Compares integers, where NaN is above every number, whatever the order of the operands.
static bool has_nan(const float *x) {
  int32_t most = 0;
  for (int i = 0; i < kSampleTile; i++) {
    const int32_t magnitude = static_cast<int32_t>(bits_of(x[i]) & 0x7fffffff);
    most = magnitude > most ? magnitude : most;
  }
  return most > 0x7f800000;
}

static float tile_max(const float *x) {
  F a = load(x), b = load(x + kSampleLanes);
  for (int i = 2 * kSampleLanes; i < kSampleTile; i += 2 * kSampleLanes) {
    a = max(a, load(x + i));
    b = max(b, load(x + i + kSampleLanes));
  }
  return largest(max(a, b));
}

static Peak find_peak(const Row &row) {
  alignas(64) float buffer[kSampleTile];
  float best = -kInfinity;
  int tile = 0;
  bool nan = false;
  for (int t = 0; t < row.tiles(); t++) {
    const float *x = read_tile(row, t, buffer);
    if (!x) continue;
    nan |= has_nan(x);
    const float top = tile_max(x);
    if (top > best) best = top, tile = t;
  }
  const bool finite = !nan && best > -kInfinity && best < kInfinity;
  if (!finite) return {nan ? __builtin_nanf("") : best, 0, false};
  const float *x = read_tile(row, tile, buffer);
  int index = tile * kSampleTile;
  while (*x++ != best) index++;
  return {best, index, true};
}

// The argmax of a row whose peak is not finite: NaN counts as -FLT_MAX, infinity as FLT_MAX.
static int finite_argmax(const Row &row) {
  float best = -kInfinity;
  int index = -1;
  for (int i = 0; i < row.count; i++) {
    if (!row.allows(i)) continue;
    const float x = row.values[i];
    const float value = x != x ? -FLT_MAX : x > FLT_MAX ? FLT_MAX : x;
    if (index < 0 || value > best) best = value, index = i;
  }
  return index;
}

// ---- top-n-sigma --------------------------------------------------------------------------------

// The sum of `term` over the logits that are not -inf.
template <class Term>
static double sum_terms(const Row &row, Term term) {
  alignas(64) float buffer[kSampleTile];
  double lanes[kSampleLanes] = {}, total = 0;
  for (int t = 0; t < row.tiles(); t++) {
    const float *x = read_tile(row, t, buffer);
    for (int i = 0; x && i < kSampleTile; i += kSampleLanes) {
      for (int l = 0; l < kSampleLanes; l++)
        lanes[l] += x[i + l] > -kInfinity ? term(static_cast<double>(x[i + l])) : 0.;
    }
  }
  for (double lane : lanes) total += lane;
  return total;
}

// The row with only the logits that are at most n standard deviations below `top`, its largest.
static Row within_sigmas(const Row &row, float n, float top, SampleScratch &scratch) {
  const double count = sum_terms(row, [](double) { return 1.; });
  const double mean = sum_terms(row, [](double x) { return x; }) / count;
  const double squares = sum_terms(row, [=](double x) { return (x - mean) * (x - mean); });
  const double floor = top - static_cast<double>(n) * std::sqrt(squares / count);
  // Rounding hides the order in which sums were added, so that a logit at the floor itself stays.
  const float least = floor > -FLT_MAX ? static_cast<float>(floor) : -FLT_MAX;
  alignas(64) float buffer[kSampleTile];
  for (int t = 0; t < row.tiles(); t++) {
    const float *x = read_tile(row, t, buffer);
    for (int j = 0; j < kSampleTile / 32; j++) {
      uint32_t word = 0;
      for (int i = 0; x && i < 32; i++) word |= static_cast<uint32_t>(x[32 * j + i] >= least) << i;
      scratch.words[t * (kSampleTile / 32) + j] = word;
    }
  }
  return {row.values, row.count, scratch.words, row.ids, row.vocab};
}

// ---- weights ------------------------------------------------------------------------------------

// out = exp((x - top) / temperature); returns the largest of each lane.
static F weigh_tile(const float *x, float top, float temperature, float *out) {
  const F shift = set1(top), divisor = set1(temperature), floor = set1(-100.f);
  F most = zero();
  for (int i = 0; i < kSampleTile; i += kSampleLanes) {
    const F weight = exp(max(div(sub(load(x + i), shift), divisor), floor));  // no -inf into exp
    store(out + i, weight);
    most = max(most, weight);
  }
  return most;
}

static double sum_tile(const float *weights) {
  double lanes[kSampleLanes] = {};
  for (int i = 0; i < kSampleTile; i += kSampleLanes) {
    for (int l = 0; l < kSampleLanes; l++) lanes[l] += static_cast<double>(weights[i + l]);
  }
  for (int step = kSampleLanes / 2; step; step /= 2) {
    for (int l = 0; l < step; l++) lanes[l] += lanes[l + step];
  }
  return lanes[0];
}

// Fills weights, their maxima and the cumulative sums of the tiles; returns the total. Weights of
// a tile without allowed tokens are left undefined: its maxima are 0 and it adds nothing.
static double weigh(const Row &row, float top, float temperature, SampleScratch &scratch) {
  alignas(64) float buffer[kSampleTile];
  double total = 0;
  for (int t = 0; t < row.tiles(); t++) {
    const float *x = read_tile(row, t, buffer);
    float *weights = scratch.weights + t * kSampleTile;
    const F most = x ? weigh_tile(x, top, temperature, weights) : zero();
    store(scratch.lane_max + t * kSampleLanes, most);
    scratch.tile_max[t] = largest(most);
    if (x) total += sum_tile(weights);
    scratch.cumulative[t] = total;
  }
  return total;
}

// ---- draws --------------------------------------------------------------------------------------

// What a cumulative sum must exceed. Rounding may lift the product to the total itself.
static double draw_target(double uniform, double total) {
  const double target = uniform * total, below = std::nextafter(total, 0.);
  return target < below ? target : below;
}

// Index of the draw over all allowed tokens, in id order.
static int draw_unfiltered(double uniform, double total, const SampleScratch &scratch) {
  const double target = draw_target(uniform, total);
  int t = 0;
  while (scratch.cumulative[t] <= target) t++;
  const float *weights = scratch.weights + t * kSampleTile;
  double sum = t ? scratch.cumulative[t - 1] : 0;
  int last = 0;  // the tile's own sum may have been rounded up past its last token
  for (int i = 0; i < kSampleTile; i++) {
    if (weights[i] > 0) last = i;
    sum += static_cast<double>(weights[i]);
    if (sum > target) break;
  }
  return t * kSampleTile + last;
}

// The k-th largest of n groups' maxima, which at least k weights reach; 0 if k is 0, or so close to
// n that this would exclude little. Uses scratch.keys.
static float group_bound(const float *maxima, int n, int k, SampleScratch &scratch) {
  if (k < 1 || k > n / 2) return 0;
  Key *keys = static_cast<Key *>(scratch.keys);
  for (int i = 0; i < n; i++) keys[i] = make_key(maxima[i], i);
  std::nth_element(keys, keys + k - 1, keys + n);
  return keys[k - 1].weight();
}

// A bound that at least k weights reach.
static float rank_bound(const Row &row, int k, SampleScratch &scratch) {
  const int tiles = row.tiles();
  if (k <= tiles / 2) return group_bound(scratch.tile_max, tiles, k, scratch);
  return group_bound(scratch.lane_max, tiles * kSampleLanes, k, scratch);
}

// Lists every token that weighs at least `bound`, and not zero; returns how many.
static int collect(const Row &row, float bound, SampleScratch &scratch) {
  Key *keys = static_cast<Key *>(scratch.keys);
  bound = bound < FLT_MIN ? FLT_MIN : bound;
  int n = 0;
  for (int t = 0; t < row.tiles(); t++) {
    if (scratch.tile_max[t] < bound) continue;
    const float *weights = scratch.weights + t * kSampleTile;
    for (int i = 0; i < kSampleTile; i++) {
      keys[n] = make_key(weights[i], t * kSampleTile + i);
      n += weights[i] >= bound;
    }
  }
  return n;
}

static double mass(const Key *keys, int n) {
  double sums[4] = {};
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int l = 0; l < 4; l++) sums[l] += static_cast<double>(keys[i + l].weight());
  }
  for (; i < n; i++) sums[0] += static_cast<double>(keys[i].weight());
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Lists the top k.
static int collect_top_k(const Row &row, int k, SampleScratch &scratch) {
  Key *keys = static_cast<Key *>(scratch.keys);
  const int n = collect(row, rank_bound(row, k, scratch), scratch);
  if (n <= k) return n;
  std::nth_element(keys, keys + k, keys + n);
  return k;
}

// Lists the first ranks, among them all that top-p and min-p keep. Tries guesses of how many that
// takes before it lists all tokens that weigh enough to matter.
static int collect_nucleus(const Row &row, const SampleParams &params, double total,
                           SampleScratch &scratch) {
  // All tokens lighter than this, together, weigh less than 1 - top_p of the total.
  const float light = static_cast<float>((1. - params.top_p) * total / row.count) * .999f;
  const float floor = params.min_p > light ? params.min_p : light;
  const int groups[2] = {row.tiles(), row.tiles() * kSampleLanes};
  for (int i = 0; i < 2 && params.top_p < 1; i++) {
    const float *maxima = i ? scratch.lane_max : scratch.tile_max;
    const float bound = group_bound(maxima, groups[i], groups[i] / 3, scratch);
    if (bound <= floor) break;
    const int n = collect(row, bound, scratch);
    if (mass(static_cast<Key *>(scratch.keys), n) >= params.top_p * total) return n;
  }
  return collect(row, floor, scratch);
}

// The first rank at which `reached(cumulative weight)` is true, or else the last. Reorders the keys
// so that the ranks before it come before it.
template <class Reached>
static int find_rank(Key *keys, int n, Reached reached) {
  int low = 0, high = n;
  double sum = 0;
  while (high - low > kSortedAtOnce) {
    const int half = (high - low) / 2;
    std::nth_element(keys + low, keys + low + half, keys + high);
    const double through = sum + mass(keys + low, half);
    if (reached(through)) {
      high = low + half;
    } else {
      sum = through;
      low += half;
    }
  }
  std::sort(keys + low, keys + high);
  for (int i = low; i < high; i++) {
    sum += static_cast<double>(keys[i].weight());
    if (reached(sum)) return i;
  }
  return high - 1;
}

static bool limits_rank(const SampleParams &params, const Row &row) {
  return params.top_k > 0 && params.top_k < row.vocab;
}

// Index of the draw over the first min(top-k, top-p, min-p) ranks.
static int draw_filtered(const Row &row, const SampleParams &params, double total,
                         SampleScratch &scratch) {
  Key *keys = static_cast<Key *>(scratch.keys);
  const bool limited = limits_rank(params, row);
  int n = limited ? collect_top_k(row, params.top_k, scratch)
                  : collect_nucleus(row, params, total, scratch);
  const double enough = params.top_p * (limited ? mass(keys, n) : total);
  const auto is_kept = [&](Key key) { return key.weight() >= params.min_p; };
  if (params.min_p > 0) n = static_cast<int>(std::partition(keys, keys + n, is_kept) - keys);
  if (params.top_p < 1) n = find_rank(keys, n, [&](double sum) { return sum >= enough; }) + 1;
  const double target = draw_target(params.uniform, mass(keys, n));
  return keys[find_rank(keys, n, [&](double sum) { return sum > target; })].index();
}

static int draw(const Row &row, const SampleParams &params, Peak peak, SampleScratch &scratch) {
  const double total = weigh(row, peak.value, params.temperature, scratch);
  // Parameters that are NaN or out of range would leave nothing to draw from.
  if (!(total >= 1 && params.top_p > 0 && params.min_p <= 1)) return peak.index;
  if (limits_rank(params, row) || params.top_p < 1 || params.min_p > 0) {
    return draw_filtered(row, params, total, scratch);
  }
  return draw_unfiltered(params.uniform, total, scratch);
}

static int sample_index(const Row &row, const SampleParams &params, SampleScratch &scratch) {
  const Peak peak = find_peak(row);
  if (!peak.finite) return finite_argmax(row);
  if (params.temperature <= kGreedyTemperature) return peak.index;
  if (!(params.top_n_sigma > 0)) return draw(row, params, peak, scratch);
  return draw(within_sigmas(row, params.top_n_sigma, peak.value, scratch), params, peak, scratch);
}

}  // namespace sampler

// A token id, or -1 if mask and suppression allow none. Changes no logit; allocates nothing.
static int32_t sample_row(const float *logits, int vocab, const SampleParams &params,
                          SampleScratch &scratch) {
  const sampler::Row row = sampler::allowed_row(logits, vocab, params, scratch);
  if (!row.count) return -1;
  const int index = sampler::sample_index(row, params, scratch);
  return row.ids ? row.ids[index] : index;
}

}  // namespace srt::SRT_ISA_NS
