// What the two attention kernels of attention_amx.inl share: numbers in bfloat16, products of tiles,
// and the layout of keys, values and weights.
#include "simd_avx512.h"

#include "attention_fold.inl"
#include "tile_registers.h"

namespace srt::amx {

using namespace avx512;

constexpr int kColumns = 16, kTileFloats = kTileRows * kColumns;  // of a tile of products

constexpr int tile_rows(int rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

// ---- bfloat16 -----------------------------------------------------------------------------------

// Rounded to nearest even: a's, then b's.
SRT_INLINE I to_bf16(F a, F b) {
  const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
  return reinterpret_cast<const I &>(both);
}

// Element i of a beside element i of b.
SRT_INLINE I interleave(I both) {
  alignas(64) static constexpr uint16_t order[32] = {
      0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(order), both);
}

// Sixteen rows of 32 as the columns of a tile.
SRT_INLINE void store_transposed(char *to, F (&rows)[16]) {
  transpose(rows);
  for (int i = 0; i < 16; i++) _mm512_storeu_ps(to + 64 * i, rows[i]);
}

// ---- products of tiles --------------------------------------------------------------------------

// Tile i of step s of an operand begins at `first + i * next + s * step`; its rows are `stride`
// bytes apart.
struct Operand {
  const char *first;
  size_t next, step;
  int stride;

  const char *at(int s) const { return first + size_t(s) * step; }
};

// out = a times b, R x C tiles of floats.
template <int R, int C>
SRT_FLATTEN void block_product(const Operand &a, const Operand &b, int steps, float *out, int ldo) {
  clear_products<C, R>();
  for (int s = 0; s < steps; s++) {
    const char *x = a.at(s), *y = b.at(s);
    SRT_TILE_LOAD(4, x, a.stride);
    if constexpr (R == 2) SRT_TILE_LOAD(5, x + a.next, a.stride);
    SRT_TILE_LOAD(6, y, b.stride);
    if constexpr (C == 2) SRT_TILE_LOAD(7, y + b.next, b.stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (C == 2) _tile_dpbf16ps(1, 4, 7);
    if constexpr (R == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (R * C == 4) _tile_dpbf16ps(3, 5, 7);
  }
  const int stride = 4 * ldo;
  SRT_TILE_STORE(0, out, stride);
  if constexpr (C == 2) SRT_TILE_STORE(1, out + kColumns, stride);
  if constexpr (R == 2) SRT_TILE_STORE(2, out + kTileRows * ldo, stride);
  if constexpr (R * C == 4) SRT_TILE_STORE(3, out + kTileRows * ldo + kColumns, stride);
}

// Any number of tiles, two by two.
SRT_INLINE void blocks_product(Operand a, int rows, Operand b, int columns, int steps, float *out,
                               int ldo) {
  const char *first = b.first;
  for (int r = 0; r < rows; r += 2, a.first += 2 * a.next, out += 2 * kTileRows * ldo) {
    b.first = first;
    for (int c = 0; c < columns; c += 2, b.first += 2 * b.next) {
      float *to = out + c * kColumns;
      if (r + 1 < rows)
        c + 1 < columns ? block_product<2, 2>(a, b, steps, to, ldo)
                        : block_product<2, 1>(a, b, steps, to, ldo);
      else
        c + 1 < columns ? block_product<1, 2>(a, b, steps, to, ldo)
                        : block_product<1, 1>(a, b, steps, to, ldo);
    }
  }
}

// ---- what both kernels share --------------------------------------------------------------------

// Heads of 16 * V elements.
template <int V>
struct TileAttention {
  static constexpr int kDim = 16 * V, kRecord = record_floats(kDim);
  static constexpr int kGroups = (V + 1) / 2;  // of 32 dimensions, the last perhaps half empty
  static constexpr size_t kHeadBytes = size_t(kGroups) * kTileBytes;  // of sixteen keys or queries
  static constexpr size_t kValueBytes = size_t(V) * kTileBytes;       // of 32 values

  // Group g of a head's elements.
  template <class T>
  SRT_INLINE I read_group(const T *x, int g) {
    return to_bf16(load(x + 32 * g), 2 * g + 1 < V ? load(x + 32 * g + 16) : zero());
  }

  // Rows of weights, which lie in the first half of their scores' place.
  static Operand weights_from(const float *row) {
    return {reinterpret_cast<const char *>(row), 4 * kTileRows * kChunk, 64, 4 * kChunk};
  }
  static Operand values_of(const char *values) { return {values, kTileBytes, kValueBytes, 64}; }

  // Values [t, t + 32) as the right operand. Those that are not among [from, to) are zero. `most`:
  // the largest magnitude's bits so far. Calls each() for each of the 32.
  template <class Each>
  SRT_INLINE void gather_values(const f16 *pool, size_t stride, const int32_t *slots, int t,
                                int from, int to, char *out, I &most, Each each) {
    const bool whole = t >= from && t + kGroup <= to;
    for (int j = 0; j < 16; j++) {
      const int a = t + 2 * j, b = a + 1;
      const bool first = whole || (a >= from && a < to), second = whole || (b >= from && b < to);
      const f16 *x = pool + size_t(slots[first ? a : from]) * stride;
      const f16 *y = pool + size_t(slots[second ? b : from]) * stride;
      each();
      each();
      repeat<V>([&](auto d) {
        F left = load(x + 16 * d), right = load(y + 16 * d);
        if (!first) left = zero();
        if (!second) right = zero();
        most = _mm512_max_epu32(most, _mm512_castps_si512(abs(left)));
        most = _mm512_max_epu32(most, _mm512_castps_si512(abs(right)));
        _mm512_storeu_si512(out + d * kTileBytes + 64 * j, interleave(to_bf16(left, right)));
      });
    }
  }

  // Scores of a row to weights, in place; their maximum and sum to totals[0] and [1].
  SRT_FLATTEN void weigh(float *scores, int lo, int hi, float *totals) {
    F p[kChunk / 16];
    softmax_chunk(scores, lo, hi, totals[0], totals[1], [&](auto i, F weight) { p[i] = weight; });
    char *to = reinterpret_cast<char *>(scores);
    repeat<kChunk / kGroup>([&](auto g) {
      _mm512_storeu_si512(to + 64 * g, to_bf16(p[2 * g], p[2 * g + 1]));
    });
  }

  // Where the result of (query, head) in a chunk goes: see AttentionCall.
  SRT_INLINE void keep(const AttentionCall &call, const Query &query, int chunk, int head,
                       const float *record, float *state) {
    if (query.partials >= 0)
      fold_record(partial_record(call, query, chunk, head), record, kDim, true);
    else
      fold_record(state, record, kDim, chunk == first_chunk_of(query));
  }

  SRT_INLINE void finish(const AttentionCall &call, const Query &query, int head,
                         const float *state) {
    if (query.partials >= 0) return;
    finish_record(state, kDim, call.out + query.token * call.ldo + size_t(head) * kDim);
  }
};

}  // namespace srt::amx
