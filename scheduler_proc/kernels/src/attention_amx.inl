// Attention over a pool of halves on AMX's bfloat16 products, in the canonical reduction of
// attention.inl: chunks of keys, a softmax of each, folded in order.
//
// Queries, keys, weights and values are rounded to bfloat16, sums are float32. A score is one chain
// of products of tiles over groups of 32 dimensions, an output one over the chunk's groups of 32
// keys, whichever kernel computes it: `TileRows` for one token (keys are the left operand, in the
// order that they lie in) and `TileBlocks` for many (keys are transposed once, as the right one).
// The product of two bfloat16 is exact in float32, so it does not matter which of them is on the
// left. A weight of zero adds nothing, so neither do groups of keys that a row does not see.
#include "attention_amx_row.inl"

namespace srt::amx {

// ---- many tokens --------------------------------------------------------------------------------

template <int V>
struct TileBlocks : TileAttention<V> {
  using Base = TileAttention<V>;
  using Base::kDim;
  using Base::kGroups;
  using Base::kHeadBytes;
  using Base::kRecord;
  using Base::kValueBytes;

  struct Scratch {
    char *queries;   // [tiles of rows][kGroups] tiles
    char *keys;      // [2][kGroups] tiles
    char *values;    // [kChunk / 32][V] tiles
    float *scores;   // [rows][kChunk], then weights
    float *records;  // [rows]
    float *states;   // [rows]
  };

  static Scratch carve(float *scratch, int rows) {
    Scratch s;
    s.queries = reinterpret_cast<char *>(scratch);
    s.keys = s.queries + size_t(rows / kTileRows) * kHeadBytes;
    s.values = s.keys + 2 * kHeadBytes;
    s.scores = reinterpret_cast<float *>(s.values + kChunk / kGroup * kValueBytes);
    s.records = s.scores + size_t(rows) * kChunk;
    s.states = s.records + size_t(rows) * kRecord;
    return s;
  }

  // Queries [first_query, last_query) x one kv head. Queries are in order of their limits.
  struct View {
    const AttentionCall &call;
    const AttentionUnit &unit;
    int kv, group, rows;
    Scratch s;

    const Query &query_of(int row) const { return call.queries[unit.first_query + row / group]; }
    int head_of(int row) const { return kv * group + row % group; }
    const f16 *pool(const void *of) const {
      return static_cast<const f16 *>(of) + size_t(kv) * kDim;
    }
    size_t stride() const { return size_t(call.kv_heads) * kDim; }
    // Keys of the chunk at `base` that rows up to the pair of tiles at `row` see, at most n.
    int visible(int row, int base, int n) const {
      return std::min(n, query_of(std::min(rows, row + 2 * kTileRows) - 1).limit - base);
    }
  };

  // The rows as the left operand.
  SRT_FLATTEN void read_queries(const View &view) {
    for (int r = 0; r < view.rows; r++) {
      const float *q = view.call.q + view.query_of(r).token * view.call.ldq +
                       size_t(view.head_of(r)) * kDim;
      char *to = view.s.queries + r / kTileRows * kHeadBytes + r % kTileRows * 64;
      for (int g = 0; g < kGroups; g++)
        _mm512_storeu_si512(to + g * kTileBytes, Base::read_group(q, g));
    }
  }

  // Keys of `count` <= 32 slots as the right operand; those that are missing are zero.
  SRT_FLATTEN void gather_keys(const f16 *pool, size_t stride, const int32_t *slots, int count,
                               char *to) {
    for (int t = 0; t < kGroup; t += kTileRows)
      for (int g = 0; g < kGroups; g++, to += kTileBytes) {
        F rows[16];
        for (int i = 0; i < 16; i++)
          rows[i] = t + i < count ? _mm512_castsi512_ps(
                                        Base::read_group(pool + size_t(slots[t + i]) * stride, g))
                                  : zero();
        store_transposed(to, rows);
      }
  }

  static Operand weights_from(const View &view, int row) {
    return Base::weights_from(view.s.scores + size_t(row) * kChunk);
  }

  // Pairs of row tiles that see none of some keys skip them: their scores are not read.
  static void chunk_scores(const View &view, const int32_t *slots, int first, int base, int n) {
    const Operand keys{view.s.keys, kHeadBytes, kTileBytes, 64};
    for (int t = 0; t < n; t += kGroup) {
      gather_keys(view.pool(view.call.k_pool), view.stride(), slots + t, std::min(kGroup, n - t),
                  view.s.keys);
      for (int r = first; r < view.rows; r += 2 * kTileRows) {
        if (view.visible(r, base, n) <= t) continue;
        const Operand queries{view.s.queries + r / kTileRows * kHeadBytes, kHeadBytes, kTileBytes,
                              64};
        const int tiles = view.rows - r > kTileRows ? 2 : 1;
        blocks_product(queries, tiles, keys, 2, kGroups, view.s.scores + size_t(r) * kChunk + t,
                       kChunk);
      }
    }
  }

  // Values [from, to) of a chunk; true if all are finite.
  SRT_FLATTEN bool gather_all_values(const View &view, const int32_t *slots, int from, int to) {
    I most = _mm512_setzero_si512();
    for (int t = 0; t < to; t += kGroup)
      Base::gather_values(view.pool(view.call.v_pool), view.stride(), slots, t, from, to,
                          view.s.values + t / kGroup * kValueBytes, most, [] {});
    return _mm512_cmpge_epu32_mask(most, _mm512_set1_epi32(0x7f800000)) == 0;
  }

  static void chunk_values(const View &view, const int32_t *slots, int first, int base, int n) {
    if (!gather_all_values(view, slots, 0, n)) return broken_values(view, slots, first, base, n);
    for (int r = first; r < view.rows; r += 2 * kTileRows) {
      const int seen = view.visible(r, base, n), tiles = view.rows - r > kTileRows ? 2 : 1;
      blocks_product(weights_from(view, r), tiles, Base::values_of(view.s.values), V,
                     (seen + kGroup - 1) / kGroup, view.s.records + size_t(r) * kRecord, kRecord);
    }
  }

  // The same where some values are not finite: zero times them would spoil rows that may not see
  // them, so every row gets the values that it sees. Slow, and hardly ever needed.
  static void broken_values(const View &view, const int32_t *slots, int first, int base, int n) {
    auto *products = reinterpret_cast<float *>(view.s.keys);
    for (int row = first; row < view.rows; row++) {
      const Query &query = view.query_of(row);
      const int seen = std::min(n, query.limit - base);
      gather_all_values(view, slots, std::max(0, query.lower - base), seen);
      blocks_product(weights_from(view, row / kTileRows * kTileRows), 1,
                     Base::values_of(view.s.values), V, (seen + kGroup - 1) / kGroup, products,
                     kDim);
      std::copy_n(products + row % kTileRows * kDim, kDim, view.s.records + size_t(row) * kRecord);
    }
  }

  static void attend_head(const View &view) {
    const AttentionUnit &unit = view.unit;
    read_queries(view);
    const int end = view.query_of(view.rows - 1).limit;
    for (int chunk = unit.first_chunk; chunk < unit.last_chunk; chunk++) {
      const int base = chunk * kChunk, n = std::min(kChunk, end - base);
      int first = 0;  // rows whose last key comes before this chunk have nothing to do
      while (view.query_of(first).limit <= base) first++;
      const int tile = first / kTileRows * kTileRows;
      chunk_scores(view, unit.slots + base, tile, base, n);
      for (int r = first; r < view.rows; r++)
        Base::weigh(view.s.scores + size_t(r) * kChunk, view.query_of(r).lower - base,
                    view.query_of(r).limit - base, view.s.records + r * kRecord + kDim);
      chunk_values(view, unit.slots + base, tile, base, n);
      // A chunk that the window hides altogether does not count.
      for (int r = first; r < view.rows; r++)
        if (view.query_of(r).lower < base + kChunk)
          Base::keep(view.call, view.query_of(r), chunk, view.head_of(r),
                     view.s.records + r * kRecord, view.s.states + r * kRecord);
    }
    for (int r = 0; r < view.rows; r++)
      Base::finish(view.call, view.query_of(r), view.head_of(r), view.s.states + r * kRecord);
  }

  static void attend(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
    configure(kTileRows);
    const int group = call.heads / call.kv_heads;
    const int rows = (unit.last_query - unit.first_query) * group;
    const Scratch s = carve(scratch, tile_rows(rows));
    for (int kv = unit.first_head; kv < unit.last_head; kv++)
      attend_head({call, unit, kv, group, rows, s});
  }
};

// ---- by head size -------------------------------------------------------------------------------

template <int V>
static void attend_with(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
  if (unit.last_query - unit.first_query == 1)
    TileRows<V>::attend(call, unit, scratch);
  else
    TileBlocks<V>::attend(call, unit, scratch);
}

// Pools of halves only.
static void attend(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
  switch (call.head_dim) {
    case 16: return attend_with<1>(call, unit, scratch);
    case 32: return attend_with<2>(call, unit, scratch);
    case 64: return attend_with<4>(call, unit, scratch);
    case 80: return attend_with<5>(call, unit, scratch);
    case 96: return attend_with<6>(call, unit, scratch);
    case 128: return attend_with<8>(call, unit, scratch);
    case 256: return attend_with<16>(call, unit, scratch);
  }
}

}  // namespace srt::amx
