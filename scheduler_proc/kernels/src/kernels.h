// The table of kernels that each instruction-set level fills in; the engine calls nothing else.
// A kernel works on one unit of a phase (a token, some channels, one attention task), large enough
// that the indirect call does not matter.
#pragma once
#include <cstddef>
#include <type_traits>

#include "formats.h"
#include "numeric.h"
#include "sampling.h"
#include "srt_kernels.h"

namespace srt {

// ---- linear layers ------------------------------------------------------------------------------

// A code of twelve bits: a multiple of 16, or 16 * i + j where j is common to a group's inputs in two
// halves, so that two inputs share a low byte (store_int12 of simd_avx512.h).
struct Int12 {
  int16_t bits;
};

// How wide the codes of activations are that weights are multiplied with.
enum class Width { kBytes, kTwelve, kWords };

// The scale of codes above eight bits, (1 + quarter / 4) * 2^exponent, as added to a product with
// the first factor: so it takes no multiplication.
struct ScaleParts {
  int32_t exponent;  // of a float, in its place
  int32_t quarter;
};
inline ScaleParts parts_of(float scale) {
  const uint32_t bits = bits_of(scale);
  return {static_cast<int32_t>(bits & 0x7f800000) - 0x3f800000,
          static_cast<int32_t>(bits >> 21 & 3)};
}

// Rows of quantised activations: int8_t, or int16_t or Int12 in the order in which the level reads a
// group.
template <class Code>
struct Codes {
  const Code *q;            // [rows, k]
  const float *scale;       // [rows, k/32]
  const float *sums;        // [rows, k/32]: scale * sum of q over the group
  const int32_t *halves;    // [rows, k/16]: sum of q over each half of it; for SRT_Q8, SRT_Q6
  const ScaleParts *parts;  // [rows, k/32]: of scale, where it is finite; for codes above 8 bits
};

// The largest code. One of 16 bits has at most 127 in its high byte, so that every code is two
// signed bytes: high * 256 + low. One of twelve leaves room for 16 times a low byte.
template <class Code>
constexpr int kLargestCode = 127 * 256;
template <>
constexpr int kLargestCode<int8_t> = 127;
template <>
constexpr int kLargestCode<Int12> = 119 * 256;

// Rows of activations as linear layers read them: quantised weights need bytes, twelve or words,
// float weights need x, weights in tiles need tiles.
struct Activations {
  const float *x;  // [rows, k]
  Codes<int8_t> bytes;
  Codes<Int12> twelve;
  Codes<int16_t> words;
  const bf16 *tiles;  // [row tiles][k/2][columns][2]: inputs 2i and 2i + 1 of a row side by side
  int columns;        // tile_columns of all rows

  template <class Code>
  const Codes<Code> &codes() const {
    if constexpr (std::is_same_v<Code, int8_t>)
      return bytes;
    else if constexpr (std::is_same_v<Code, Int12>)
      return twelve;
    else
      return words;
  }
};

// Activations for weights in tiles: rows in tiles of 16, or all in one that is narrower.
constexpr int kTileRows = 16;
constexpr int tile_columns(int rows) { return rows < kTileRows ? rows : kTileRows; }
constexpr size_t tiled_elements(size_t rows, size_t k) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows * k;
}

enum class Output {
  kStore,
  kAdd,      // added to y, the residual, times `scale`
  kSiluMul,  // silu(x @ w[0].T) * (x @ w[1].T)
  kSiluTiles,  // the same as activations of the next layer; both have weights in tiles
};
constexpr bool is_gated(Output output) {
  return output == Output::kSiluMul || output == Output::kSiluTiles;
}

// y [rows, ldy] is written in whole channel blocks: ldy >= padded(n).
struct LinearTask {
  const srt_matrix *w[2];
  Activations x;
  float *y;
  size_t ldy;
  Output output;
  bf16 *tiles;  // kSiluTiles: the output, as in Activations, instead of y
  Width width;    // of what quantised weights are multiplied with
  float scale = 1;
  int rows = 0;
  // By plan_pieces: panels of rows, channel-block pairs of a piece, and pieces of the tasks before.
  int panels = 1, step = 1, first_piece = 0;
};

// From this many rows on, quantised blocks are unpacked before use: for fewer it takes longer than
// unpacking in registers, again for every tile of rows.
constexpr int kUnpackRows = 48;

constexpr size_t wide_block_bytes(int k) { return size_t(k / kGroup) * (512 + 256 + 5 * 64); }
// Bytes of a pair of channel blocks as matrix tiles, and of the tiles of their products.
constexpr size_t tile_scratch_bytes(int k) { return size_t(k / kGroup) * 2 * 1024 + 4 * 1024; }
// Scratch memory per thread that `linear` needs for k inputs.
constexpr size_t linear_scratch_bytes(int k) {
  const size_t wide = 2 * wide_block_bytes(k), tiles = tile_scratch_bytes(k);
  return wide > tiles ? wide : tiles;
}

// ---- attention ----------------------------------------------------------------------------------

// Keys are taken in chunks at absolute positions: softmax over a chunk, chunks folded in order.
// Every kernel follows this one reduction, so that a token's result has the same bits however the
// work is cut: decode or extend, shared or alone, with a cached prefix or without.
constexpr int kChunk = 128;

constexpr int kLargestWord = 8191;  // of SRT_I16's codes
constexpr int kLargestHead = 256;
// A pool of SRT_I16 is [slots, kv_heads, head_dim] codes, then [slots, kv_heads] scales.
inline const float *word_scales(const void *pool, int slots, size_t slot_words) {
  return reinterpret_cast<const float *>(static_cast<const int16_t *>(pool) + slots * slot_words);
}

// A token that attends, as the plan lists it. It sees keys [lower, limit).
struct Query {
  int32_t token;
  int32_t lower, limit;
  int32_t partials;  // its first record among the partials; -1: one unit does all of it
};

// Work for one thread: queries x kv heads x chunks of one slot list.
struct AttentionUnit {
  const int32_t *slots;  // of position 0
  int32_t first_query, last_query;
  int32_t first_head, last_head;  // kv heads
  int32_t first_chunk, last_chunk;
  int32_t cost;  // estimated, for scheduling: largest first
};

struct AttentionCall {
  int32_t heads, kv_heads, head_dim, kv_format, slots;
  bool in_bfloat16;             // halves may be multiplied in it, as the layer's weights are
  const void *k_pool, *v_pool;  // [slots, kv_heads, head_dim]; SRT_I16: then the scales
  const float *q;               // [tokens, ldq], multiplied by the attention scale and log2(e)
  size_t ldq;
  float *out;  // [tokens, ldo]
  size_t ldo;
  const Query *queries;
  float *partials;  // records of [head_dim] unnormalised output, maximum, sum; heads of a chunk
                    // together, chunks of a query in order
};

constexpr float kLog2E = 1.44269504f;

constexpr int record_floats(int head_dim) { return head_dim + 16; }
// Query rows (tokens x heads of a group) that a unit takes at once.
constexpr int kUnitRows = 192;
constexpr int first_chunk_of(const Query &query) { return query.lower / kChunk; }
constexpr int last_chunk_of(const Query &query) { return (query.limit + kChunk - 1) / kChunk; }
// Scratch memory per thread of `attend`: that of TileBlocks, which takes rows in pairs of tiles,
// and that of any kernel.
constexpr size_t tile_attention_floats(int rows, int head_dim) {
  const size_t pairs = (rows + 2 * kTileRows - 1) / (2 * kTileRows), pair = 2 * kTileRows;
  const size_t tile = 256, groups = (head_dim + kGroup - 1) / kGroup, columns = head_dim / 16 + 1;
  const size_t steps = kChunk / kGroup;
  return (pairs + 1) * pair * record_floats(head_dim) + kChunk * pair +
         tile * (steps * (2 + 2 * groups + columns) + 2 * pairs * groups);
}
constexpr size_t attention_scratch_floats(int heads, int head_dim) {
  const int most = heads > kUnitRows ? heads : kUnitRows;
  const int rows = (most + 2 * kTileRows) / kTileRows * kTileRows;  // tiles of rows, and one more
  const int wide = (head_dim + kGroup - 1) / kGroup * kGroup;       // whole groups of dimensions
  const int queries = heads * kTileRows > rows ? heads * kTileRows : rows;  // in tiles of bfloat16
  const size_t others = size_t(rows) * (kChunk + 2 * record_floats(head_dim) + 1 + 4 * kTileRows) +
                        size_t(queries) * wide / 2 + size_t(kChunk) * head_dim;
  const size_t tiles = tile_attention_floats(most, head_dim);
  return others > tiles ? others : tiles;
}
bool supports_head_dim(int head_dim);

struct Kernels {
  const char *name;

  // first_row is a multiple of kTileRows.
  void (*linear)(const LinearTask &, int first_pair, int last_pair, int first_row, int last_row,
                 uint8_t *scratch);
  // What weights of this format are multiplied with, given `activation_bits` of an srt_model.
  Width (*width)(int32_t format, int32_t bits);
  // `tile`: `count` rows of k inputs as a tile of `columns`. A thread that has called `linear` or
  // `attend` calls `release` before it does anything but steps. Both are null without tiles.
  void (*tile)(const float *const *rows, int count, int k, int columns, bf16 *out);
  void (*release)();

  // These take one token's row.
  void (*rms_norm)(const float *x, const float *weight, int k, float eps, float *y);
  // `halves` may be null. A level without Width::kTwelve has no quantize_twelve.
  void (*quantize)(const float *x, int k, int8_t *q, float *scale, float *sums, int32_t *halves,
                   ScaleParts *);
  void (*quantize_twelve)(const float *x, int k, Int12 *q, float *scale, float *sums,
                          int32_t *halves, ScaleParts *parts);
  void (*quantize_words)(const float *x, int k, int16_t *q, float *scale, float *sums,
                         int32_t *halves, ScaleParts *parts);
  void (*rope)(float *x, const float *cos_sin, int heads, int head_dim);
  void (*scale)(float *x, int k, float by);
  void (*silu_mul)(float *gate, const float *up, int k);  // gate = silu(gate) * up
  // x += scale * sum of weights[i] * rows[i], in this order; the rows have k elements.
  void (*add_weighted)(const float *const *rows, const float *weights, int count, int k,
                       float scale, float *x);
  void (*store_kv)(const float *x, int n, int kv_format, void *out);
  void (*store_kv_words)(const float *x, int heads, int head_dim, int16_t *out, float *scales);

  void (*attend)(const AttentionCall &, const AttentionUnit &, float *scratch);
  void (*fold)(const AttentionCall &, const Query &);

  uint64_t (*read_bytes)(const void *data, size_t bytes);  // for measuring bandwidth

  int32_t (*sample_row)(const float *logits, int vocab, const SampleParams &, SampleScratch &);
  LogNormalizer (*log_normalizer)(const float *logits, int vocab);
  void (*rank_top)(const float *logits, int vocab, int count, SampleScratch &, int32_t *ids);
};

// The kernels of a level by name, or of the best level if null; null and an error text if the CPU
// or the build lacks it.
const Kernels *find_kernels(const char *name);

}  // namespace srt
