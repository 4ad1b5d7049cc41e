// Attention over a pool of halves on AMX's bfloat16 products, in the canonical reduction of
// attention.inl: chunks of keys, a softmax of each, folded in order.
//
// Queries, keys, weights and values are rounded to bfloat16, sums are float32. A score is one chain
// of products of tiles over groups of 32 dimensions, an output one over the chunk's groups of 32
// keys, whichever kernel computes it: `TileRows` for one token and `TileBlocks` for many. Keys are
// the left operand of both, in the order of memory; values are the right one of `TileRows` and,
// transposed, the left one of `TileBlocks`. The product of two bfloat16 is exact in float32, so
// it does not matter which of them is on the left. A weight of zero adds nothing, so neither do
// groups of keys that a row does not see.
#include <cstring>

#include "attention_amx_row.inl"

namespace srt::amx {

// ---- many tokens --------------------------------------------------------------------------------

// Everything is computed transposed: scores are [keys][rows] and outputs [dimensions][rows], so
// that a lane is a row from the softmax to the end.
template <int V>
struct TileBlocks : TileAttention<V> {
  using Base = TileAttention<V>;
  using Base::kColumnTiles;
  using Base::kDim;
  using Base::kGroups;
  using Base::kHeadBytes;
  using Base::kRecord;
  using Base::kValueBytes;

  static constexpr int kPair = 2 * kTileRows;  // rows that are computed at once
  static constexpr int kSteps = kChunk / kGroup;
  static constexpr int kState = kRecord * kPair;  // floats of a pair's records

  struct Scratch {
    char *queries;    // [tiles of rows][kGroups] tiles
    char *keys;       // [kSteps][2][kGroups] tiles
    char *values;     // [kSteps][kColumnTiles] tiles
    char *weights;    // [kSteps][2] tiles
    float *scores;    // [kChunk][kPair]
    float *products;  // [kRecord][kPair]
    float *states;    // [pairs of tiles][kRecord][kPair]
  };

  static Scratch carve(float *scratch, int rows) {
    Scratch s;
    s.states = scratch;
    s.products = s.states + size_t((rows + kPair - 1) / kPair) * kState;
    s.scores = s.products + kState;
    s.weights = reinterpret_cast<char *>(s.scores + kChunk * kPair);
    s.keys = s.weights + 2 * kSteps * kTileBytes;
    s.values = s.keys + 2 * kSteps * kHeadBytes;
    s.queries = s.values + kSteps * kValueBytes;
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
  };

  // Keys and values [0, n) of a chunk that begins at position `base`.
  struct Chunk {
    const int32_t *slots;
    int index, base, n;
    bool finite;  // whether all values are
  };

  // What a tile's rows see of a chunk: row i sees its keys [lower, upper).
  struct Sight {
    I lower, upper;
    __mmask16 any, first;  // rows that see some of it, and rows whose first chunk it is
    bool all;              // every row sees every key

    __mmask16 of(int key) const {
      const I at = _mm512_set1_epi32(key);
      return _mm512_cmple_epi32_mask(lower, at) & _mm512_cmplt_epi32_mask(at, upper);
    }
  };

  static Sight sight_of(const View &view, const Chunk &chunk, int row) {
    alignas(64) int32_t lower[kTileRows] = {}, upper[kTileRows] = {};
    Sight sight{};
    sight.all = row + kTileRows <= view.rows;
    for (int i = 0; i < kTileRows && row + i < view.rows; i++) {
      const Query &query = view.query_of(row + i);
      lower[i] = std::max(0, query.lower - chunk.base);
      upper[i] = std::clamp(query.limit - chunk.base, 0, kChunk);
      if (lower[i] < upper[i]) sight.any |= 1 << i;
      if (first_chunk_of(query) == chunk.index) sight.first |= 1 << i;
      sight.all = sight.all && lower[i] == 0 && upper[i] == kChunk;
    }
    sight.lower = _mm512_load_si512(lower);
    sight.upper = _mm512_load_si512(upper);
    return sight;
  }

  // The rows as the right operand; missing ones are zero.
  SRT_FLATTEN void read_queries(const View &view) {
    char *to = view.s.queries;
    for (int r = 0; r < view.rows; r += kTileRows)
      for (int g = 0; g < kGroups; g++, to += kTileBytes) {
        F rows[16];
        for (int i = 0; i < 16; i++) {
          rows[i] = zero();
          if (r + i < view.rows)
            rows[i] = _mm512_castsi512_ps(Base::read_group(
                view.call.q + view.query_of(r + i).token * view.call.ldq +
                    size_t(view.head_of(r + i)) * kDim,
                g));
        }
        store_transposed(to, rows);
      }
  }

  // Prefetches the next chunk's keys and values into the second-level cache.
  static void prefetch_rows(const View &view, const int32_t *slots, int count) {
    for (const f16 *pool : {view.pool(view.call.k_pool), view.pool(view.call.v_pool)})
      for (int i = 0; i < count; i++) {
        const auto *row = reinterpret_cast<const char *>(pool + size_t(slots[i]) * view.stride());
        for (size_t at = 0; at < kDim * sizeof(f16); at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
      }
  }

  // A chunk's keys as the left operand. Places of missing keys are not written: no row sees them.
  SRT_FLATTEN void gather_keys(const View &view, const Chunk &chunk) {
    const f16 *pool = view.pool(view.call.k_pool);
    for (int key = 0; key < chunk.n; key++) {
      const f16 *from = pool + size_t(chunk.slots[key]) * view.stride();
      char *to = view.s.keys + key / kTileRows * kHeadBytes + key % kTileRows * 64;
      repeat<kGroups>([&](auto g) {
        _mm512_storeu_si512(to + g * kTileBytes, Base::read_group(from, g));
      });
    }
  }

  // Values [from, to) of a chunk as the left operand, zero elsewhere; true if all are finite.
  SRT_FLATTEN bool gather_values(const View &view, const Chunk &chunk, int from, int to) {
    const f16 *pool = view.pool(view.call.v_pool);
    I most = _mm512_setzero_si512();
    for (int t = 0; t < to; t += kGroup) {
      char *out = view.s.values + t / kGroup * kValueBytes;
      Base::gather_values(pool, view.stride(), chunk.slots, t, from, to, out, most, [] {});
      for (int d = 0; d < V; d++, out += kTileBytes) {
        F rows[16];
        for (int i = 0; i < 16; i++) rows[i] = _mm512_loadu_ps(out + 64 * i);
        store_transposed(out, rows);
      }
    }
    return _mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(0x7f80)) == 0;
  }

  // The maxima of a tile's rows over `keys` keys.
  template <bool kAll>
  SRT_INLINE F maxima_of(const float *scores, int keys, const Sight &sight) {
    F most[4];
    repeat<4>([&](auto i) { most[i] = set1(kLowest); });
    for (int key = 0; key < keys; key += 4)
      repeat<4>([&](auto i) {
        const F x = load(scores + (key + i) * kPair);
        if constexpr (kAll)
          most[i] = max(most[i], x);
        else
          most[i] = _mm512_mask_max_ps(most[i], sight.of(key + i), most[i], x);
      });
    return max(max(most[0], most[1]), max(most[2], most[3]));
  }

  // Turns the scores of a tile's rows into weights; returns the scores' maxima.
  template <bool kAll>
  SRT_FLATTEN F weigh_rows(const float *scores, int keys, const Sight &sight, char *weights) {
    const F top = maxima_of<kAll>(scores, keys, sight);
    for (int step = 0; step < keys; step += kGroup, weights += 2 * kTileBytes)
      for (int pair = 0; pair < kTileRows; pair++) {
        const int key = step + 2 * pair;
        F x[2];
        repeat<2>([&](auto i) {
          x[i] = rough_exp2(sub(load(scores + (key + i) * kPair), top));
          if constexpr (!kAll) x[i] = _mm512_maskz_mov_ps(sight.of(key + i), x[i]);
        });
        _mm512_storeu_si512(weights + 64 * pair, interleave(to_bf16(x[0], x[1])));
      }
    return top;
  }

  // fold_record for sixteen rows.
  SRT_FLATTEN void fold_rows(float *state, const float *record, F now, const Sight &sight) {
    const F before = load(state + kDim * kPair);
    const F both = max(now, before);  // before, if now is not a number
    const F keep = exp2(sub(before, both)), take = exp2(sub(now, both));
    for (int d = 0; d <= kDim + 1; d++, state += kPair, record += kPair) {
      if (d == kDim) {
        _mm512_mask_storeu_ps(state, sight.any,
                              _mm512_mask_blend_ps(sight.first, both, now));
        continue;
      }
      const F chunk = load(record), folded = fma(chunk, take, mul(load(state), keep));
      _mm512_mask_storeu_ps(state, sight.any, _mm512_mask_blend_ps(sight.first, folded, chunk));
    }
  }

  // The `columns` of a tile as rows, [kTileRows][kRecord].
  SRT_FLATTEN void to_rows(const float *columns, float *rows) {
    for (int d = 0; d < kRecord; d += 16) {
      F r[16];
      for (int i = 0; i < 16; i++) r[i] = load(columns + (d + i) * kPair);
      transpose(r);
      for (int i = 0; i < 16; i++) store(rows + i * kRecord + d, r[i]);
    }
  }

  static void keep_rows(const View &view, const Chunk &chunk, int row, F maxima,
                        const Sight &sight, float *state, float *record) {
    if (view.query_of(row).partials < 0) return fold_rows(state, record, maxima, sight);
    store(record + kDim * kPair, maxima);
    alignas(64) float rows[kTileRows * kRecord];
    to_rows(record, rows);
    for (int i = 0; i < kTileRows; i++)
      if (sight.any >> i & 1)
        fold_record(partial_record(view.call, view.query_of(row + i), chunk.index,
                                   view.head_of(row + i)),
                    rows + i * kRecord, kDim, true);
  }

  // Adds a chunk to the results of the pair of tiles at `row`.
  static void pair_of_tiles(const View &view, const Chunk &chunk, int row) {
    const Scratch &s = view.s;
    const int last = std::min(view.rows, row + kPair), tiles = last - row > kTileRows ? 2 : 1;
    const int seen = std::min(chunk.n, view.query_of(last - 1).limit - chunk.base);
    const int steps = (seen + kGroup - 1) / kGroup;
    const Operand queries{s.queries + row / kTileRows * kHeadBytes, kHeadBytes, kTileBytes, 64};
    const Operand keys{s.keys, kHeadBytes, kTileBytes, 64};
    blocks_product(keys, 2 * steps, queries, tiles, kGroups, s.scores, kPair);
    Sight sights[2];
    F maxima[2];
    for (int t = 0; t < tiles; t++) {
      const float *scores = s.scores + t * kTileRows;
      char *weights = s.weights + t * kTileBytes;
      sights[t] = sight_of(view, chunk, row + t * kTileRows);
      maxima[t] = sights[t].all ? weigh_rows<true>(scores, kGroup * steps, sights[t], weights)
                                : weigh_rows<false>(scores, kGroup * steps, sights[t], weights);
    }
    multiply_values(view, chunk, row, tiles, steps);
    for (int t = 0; t < tiles; t++)
      keep_rows(view, chunk, row + t * kTileRows, maxima[t], sights[t],
                s.states + row / kPair * kState + t * kTileRows, s.products + t * kTileRows);
  }

  static void multiply_values(const View &view, const Chunk &chunk, int row, int tiles, int steps) {
    const Scratch &s = view.s;
    const Operand values{s.values, kTileBytes, kValueBytes, 64};
    const Operand weights{s.weights, kTileBytes, 2 * kTileBytes, 64};
    if (chunk.finite)
      return blocks_product(values, kColumnTiles, weights, tiles, steps, s.products, kPair);
    // Zero times what is not finite would spoil rows that may not see it, so each row is multiplied
    // with only the values that it sees. This is slow, and hardly ever needed.
    alignas(64) float products[kState];
    for (int i = 0; i < tiles * kTileRows && row + i < view.rows; i++) {
      const Query &query = view.query_of(row + i);
      const int seen = std::min(chunk.n, query.limit - chunk.base);
      if (seen <= 0) continue;
      gather_values(view, chunk, std::max(0, query.lower - chunk.base), seen);
      blocks_product(values, kColumnTiles, weights, tiles, (seen + kGroup - 1) / kGroup, products,
                     kPair);
      for (int d = 0; d < kRecord; d++) s.products[d * kPair + i] = products[d * kPair + i];
    }
  }

  static void attend_head(const View &view) {
    const AttentionUnit &unit = view.unit;
    read_queries(view);
    const int end = view.query_of(view.rows - 1).limit;
    for (int index = unit.first_chunk; index < unit.last_chunk; index++) {
      const int base = index * kChunk;
      Chunk chunk{unit.slots + base, index, base, std::min(kChunk, end - base), true};
      int seeing = 0;  // rows before it have their last key before this chunk
      while (view.query_of(seeing).limit <= base) seeing++;
      gather_keys(view, chunk);
      chunk.finite = gather_values(view, chunk, 0, chunk.n);
      if (index + 1 < unit.last_chunk)
        prefetch_rows(view, chunk.slots + kChunk, std::min(kChunk, end - base - kChunk));
      for (int row = seeing / kPair * kPair; row < view.rows; row += kPair)
        pair_of_tiles(view, chunk, row);
    }
    if (view.query_of(0).partials >= 0) return;
    alignas(64) float states[kTileRows * kRecord];
    for (int row = 0; row < view.rows; row += kTileRows) {
      to_rows(view.s.states + row / kPair * kState + row % kPair, states);
      for (int i = 0; i < kTileRows && row + i < view.rows; i++)
        Base::finish(view.call, view.query_of(row + i), view.head_of(row + i),
                     states + i * kRecord);
    }
  }

  static void attend(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
    configure(kTileRows);
    const int group = call.heads / call.kv_heads;
    const int rows = (unit.last_query - unit.first_query) * group;
    const Scratch s = carve(scratch, tile_rows(rows));
    // The column of ones (see TileAttention) is a row here, because values are transposed.
    for (int i = 0; i < kSteps; i++) {
      char *ones = s.values + i * kValueBytes + V * kTileBytes;
      std::memset(ones, 0, kTileBytes);
      _mm512_storeu_si512(ones + 64, _mm512_set1_epi32(kOnes));
    }
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
