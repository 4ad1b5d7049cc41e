// What the two attention kernels of attention_amx.inl share: products of tiles, and the layout of
// keys, values and weights.
#include "tile_values.inl"

#include "attention_fold.inl"

namespace srt::amx {

constexpr int kColumns = 16, kTileFloats = kTileRows * kColumns;  // of a tile of products

constexpr int tile_rows(int rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

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

// Heads of 16 * V elements. Values have one more column tile, whose second column is all ones: its
// products are the sum of the weights, as rounded, in the place that a record has for it.
template <int V>
struct TileAttention {
  static constexpr int kDim = 16 * V, kRecord = record_floats(kDim);
  static constexpr int kColumnTiles = V + 1;
  static_assert(kRecord == 16 * kColumnTiles, "a record is a row of the products with values");
  static constexpr int kGroups = (V + 1) / 2;  // of 32 dimensions, the last perhaps half empty
  static constexpr size_t kHeadBytes = size_t(kGroups) * kTileBytes;  // of sixteen keys or queries
  static constexpr size_t kValueBytes = size_t(kColumnTiles) * kTileBytes;  // of 32 values

  // Group g of a head's elements.
  template <class T>
  SRT_INLINE I read_group(const T *x, int g) {
    return to_bf16(load(x + 32 * g), 2 * g + 1 < V ? load(x + 32 * g + 16) : zero());
  }

  // Rows of weights, which take the first half of their scores' memory.
  static Operand weights_from(const float *row) {
    return {reinterpret_cast<const char *>(row), 4 * kTileRows * kChunk, 64, 4 * kChunk};
  }
  static Operand values_of(const char *values) { return {values, kTileBytes, kValueBytes, 64}; }

  // The last column tile of a group of values.
  SRT_INLINE void write_ones(char *values) {
    const I ones = _mm512_maskz_set1_epi32(2, kOnes);
    for (int j = 0; j < 16; j++) _mm512_storeu_si512(values + V * kTileBytes + 64 * j, ones);
  }

  // Values [t, t + 32) as the right operand; those outside [from, to) are zero. `most` are the bits
  // of the largest magnitudes so far. Calls each() for each of the 32.
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
        const I both = to_bf16(left, right);
        most = _mm512_max_epu16(most, _mm512_and_si512(both, _mm512_set1_epi16(0x7fff)));
        _mm512_storeu_si512(out + d * kTileBytes + 64 * j, interleave(both));
      });
    }
  }

  // Turns scores [lo, hi) of a row into weights, in place, zero elsewhere; returns their maximum.
  // Scores are in units of log2 (the queries are scaled for that).
  SRT_FLATTEN float weigh(float *scores, int lo, int hi) {
    constexpr int kCount = kChunk / 16;
    F x[kCount];
    repeat<kCount>([&](auto i) { x[i] = load(scores + 16 * i); });
    if (lo > 0 || hi < kChunk)
      repeat<kCount>([&](auto i) {
        x[i] = first_lanes(hi - 16 * i, x[i], set1(kLowest));
        x[i] = first_lanes(lo - 16 * i, set1(kLowest), x[i]);
      });
    F most = x[0];
    repeat<kCount - 1>([&](auto i) { most = max(most, x[i + 1]); });
    const float maximum = largest(most);
    const F top = set1(maximum);
    char *to = reinterpret_cast<char *>(scores);
    repeat<kCount / 2>([&](auto g) {
      const F a = rough_exp2(sub(x[2 * g], top)), b = rough_exp2(sub(x[2 * g + 1], top));
      _mm512_storeu_si512(to + 64 * g, to_bf16(a, b));
    });
    return maximum;
  }

  // Stores the record of (query, head) for a chunk, or folds it into `state`: see AttentionCall.
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
