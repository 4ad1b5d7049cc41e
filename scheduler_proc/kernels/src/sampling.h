// What callers of the sampler (sampling.inl, logprobs.inl) give it for a row: parameters and
// scratch memory; and what they get besides ids.
#pragma once
#include <cstddef>
#include <cstdint>

#include "numeric.h"

namespace srt {

struct SampleParams {
  float temperature, top_p, min_p;
  float top_n_sigma;  // 0 or less: off
  int top_k;          // -1: off
  double uniform;     // in [0, 1): the row's random draw
  const int32_t *suppress;
  int num_suppress;
  const uint32_t *mask;  // [(vocab+31)/32] bit set: allowed; NULL: all are
};

// A row's log-probabilities are its logits minus these two.
struct LogNormalizer {
  double peak, log_sum;
};

// Always inlined: a copy compiled for one instruction set must not serve another.
SRT_INLINE float logprob(const LogNormalizer &norm, float logit) {
  return static_cast<float>(static_cast<double>(logit) - norm.peak - norm.log_sum);
}

// Rows are read in tiles of kSampleTile tokens; a tile has kSampleLanes interleaved lanes.
constexpr int kSampleTile = 256;
constexpr int kSampleLanes = 16;
// If at most one token in this many is allowed, the sampler works on a list of the allowed ones.
constexpr int kSampleSparsity = 16;

// Pointers into memory of the caller, for one row at a time.
struct SampleScratch {
  double *cumulative;  // [tiles]
  void *keys;          // [tokens + 1] of 8 bytes
  float *weights;      // [tokens]
  float *lane_max;     // [tiles, kSampleLanes]
  float *tile_max;     // [tiles]
  float *values;       // [tokens/kSampleSparsity]
  int32_t *ids;        // [tokens/kSampleSparsity]
  uint32_t *words;     // [tokens/32]
  float *saved;        // [tokens] original logits of adjusted ids
};

SRT_INLINE int sample_tiles(int vocab) { return (vocab + kSampleTile - 1) / kSampleTile; }

SRT_INLINE size_t sample_scratch_bytes(int vocab) {
  const size_t tiles = sample_tiles(vocab), tokens = tiles * kSampleTile;
  return tiles * (8 + 4 + 4 * kSampleLanes) + (tokens + 1) * 8 + tokens * 4 +
         tokens / kSampleSparsity * 8 + tokens / 32 * 4 + tokens * 4;
}

// `memory`: sample_scratch_bytes(vocab) bytes, aligned to 8.
SRT_INLINE SampleScratch sample_scratch(void *memory, int vocab) {
  const size_t tiles = sample_tiles(vocab), tokens = tiles * kSampleTile;
  SampleScratch s;
  s.cumulative = static_cast<double *>(memory);
  s.keys = s.cumulative + tiles;
  s.weights = reinterpret_cast<float *>(s.cumulative + tiles + tokens + 1);
  s.lane_max = s.weights + tokens;
  s.tile_max = s.lane_max + tiles * kSampleLanes;
  s.values = s.tile_max + tiles;
  s.ids = reinterpret_cast<int32_t *>(s.values + tokens / kSampleSparsity);
  s.words = reinterpret_cast<uint32_t *>(s.ids + tokens / kSampleSparsity);
  s.saved = reinterpret_cast<float *>(s.words + tokens / 32);
  return s;
}

}  // namespace srt
