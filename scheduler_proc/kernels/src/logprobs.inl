// Log-probabilities of a row of logits, and its most likely tokens. Included once per
// instruction-set level, after the sampler, whose passes over tiles and keys it shares.
namespace srt::SRT_ISA_NS {
namespace sampler {

// Bits in the same order as the numbers: zeros are equal, NaN is below all.
SRT_INLINE uint32_t ordered_bits(float x) {
  if (x != x) return 0;
  const uint32_t bits = bits_of(x + 0.f);
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

SRT_INLINE Key rank_key(float logit, int index) {
  return {static_cast<uint64_t>(ordered_bits(logit)) << 32 | ~static_cast<uint32_t>(index)};
}

// The largest logit of each lane of a tile, and of each tile.
static void find_maxima(const Row &row, SampleScratch &scratch) {
  alignas(64) float buffer[kSampleTile];
  for (int t = 0; t < row.tiles(); t++) {
    const float *x = read_tile(row, t, buffer);
    F most = load(x);
    for (int i = kSampleLanes; i < kSampleTile; i += kSampleLanes) most = max(most, load(x + i));
    store(scratch.lane_max + t * kSampleLanes, most);
    scratch.tile_max[t] = largest(most);
  }
}

// A bound that at least `count` logits of a row without NaN reach; -inf if there are too few groups
// to know a higher one.
static float top_bound(const Row &row, int count, SampleScratch &scratch) {
  const bool by_tile = count <= row.tiles() / 2;
  const int groups = by_tile ? row.tiles() : row.tiles() * kSampleLanes;
  if (count > groups / 2) return -kInfinity;
  const float *maxima = by_tile ? scratch.tile_max : scratch.lane_max;
  Key *keys = static_cast<Key *>(scratch.keys);
  for (int i = 0; i < groups; i++) keys[i] = rank_key(maxima[i], i);
  std::nth_element(keys, keys + count - 1, keys + groups);
  return maxima[keys[count - 1].index()];
}

// Lists all tokens whose logit is not below the bound; returns how many.
static int collect_top(const Row &row, float bound, SampleScratch &scratch) {
  Key *keys = static_cast<Key *>(scratch.keys);
  const bool all = bound == -kInfinity;
  int n = 0;
  for (int t = 0; t < row.tiles(); t++) {
    if (!all && scratch.tile_max[t] < bound) continue;
    const int first = t * kSampleTile;
    const int last = first + kSampleTile < row.count ? first + kSampleTile : row.count;
    for (int i = first; i < last; i++) {
      keys[n] = rank_key(row.values[i], i);
      n += all || row.values[i] >= bound;
    }
  }
  return n;
}

}  // namespace sampler

// log softmax(logits) is logprob(result, logit); NaN or -inf, by the rules of IEEE, if the row's
// maximum is not finite.
static LogNormalizer log_normalizer(const float *logits, int vocab) {
  const sampler::Row row{logits, vocab, nullptr, nullptr, vocab};
  const sampler::Peak peak = sampler::find_peak(row);
  if (!peak.finite) return {static_cast<double>(peak.value), 0};
  alignas(64) float buffer[kSampleTile], weights[kSampleTile];
  double total = 0;
  for (int t = 0; t < row.tiles(); t++) {
    sampler::weigh_tile(sampler::read_tile(row, t, buffer), peak.value, 1.f, weights);
    total += sampler::sum_tile(weights);
  }
  return {static_cast<double>(peak.value), std::log(total)};
}

// The ids of the `count` <= vocab largest logits, the largest first, among equals the lowest id;
// tokens with NaN come last. Allocates nothing.
static void rank_top(const float *logits, int vocab, int count, SampleScratch &scratch,
                     int32_t *ids) {
  using sampler::Key;
  if (count < 1) return;
  const sampler::Row row{logits, vocab, nullptr, nullptr, vocab};
  const bool comparable = sampler::find_peak(row).finite;
  if (comparable) sampler::find_maxima(row, scratch);
  const float bound =
      comparable ? sampler::top_bound(row, count, scratch) : -sampler::kInfinity;
  Key *keys = static_cast<Key *>(scratch.keys);
  const int n = sampler::collect_top(row, bound, scratch);
  if (count < n) std::nth_element(keys, keys + count, keys + n);
  std::sort(keys, keys + count);
  for (int i = 0; i < count; i++) ids[i] = keys[i].index();
}

}  // namespace srt::SRT_ISA_NS
