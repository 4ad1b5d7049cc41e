// Attention over the token-granular pool, in one canonical reduction.
//
// A query's keys are cut into chunks of kChunk at absolute positions. Within a chunk: scores, one
// softmax, weighted values; then chunks are folded left to right. Two kernels compute a chunk, and
// give the same bits: `RowKernel` reads each key once for the query rows of one token or a few
// (decoding; lanes run along the head), `BlockKernel` first gathers keys and values into scratch
// for many rows (extending, shared prefixes; lanes run along the keys). For this, the block kernel
// adds a score's 16 partial sums in the order of `sum_lanes`.
//
// Chunked softmax and its merging: Milakov and Gimelshein 2018, Dao et al. 2022 (FlashAttention).
#include "attention_fold.inl"
#include "attention_row.inl"
#include "attention_words.inl"

namespace srt::SRT_ISA_NS {

// ---- many rows: keys and values are gathered first ----------------------------------------------

template <class T, int V>
struct BlockKernel {
  static constexpr int kDim = 16 * V;
  static constexpr int kTile = 64;  // keys gathered at once
  static constexpr int kLeastValueRows = 3;  // rows of a value product, if there are that many
  static constexpr int kValueRows =
      std::max(1, std::min(6, kValueRegisters / columns_at_once<V>(kLeastValueRows)));

  struct Scratch {
    float *keys;     // [kDim][kTile]
    float *values;   // [kTile][kDim]
    float *scores;   // [rows][kChunk]
    float *records;  // [rows]
    float *states;   // [rows]
  };

  // keys[d][t] = key t's d-th element, for up to kTile slots; the rest of the last 32 is zero.
  static void gather_keys(const T *pool, size_t stride, const int32_t *slots, int n, float *keys) {
    for (int t = 0; t < (n + 31) / 32 * 32; t += 16)
      for (int d = 0; d < kDim; d += 16) {
        F rows[16];
        for (int i = 0; i < 16; i++)
          rows[i] = t + i < n ? load(pool + size_t(slots[t + i]) * stride + d) : zero();
        transpose(rows);
        for (int i = 0; i < 16; i++) store(keys + (d + i) * kTile + t, rows[i]);
      }
  }

  static void gather_values(const T *pool, size_t stride, const int32_t *slots, int n,
                            float *values) {
    for (int t = 0; t < n; t++) {
      const T *value = pool + size_t(slots[t]) * stride;
      for (int d = 0; d < kDim; d += 16) store(values + t * kDim + d, load(value + d));
    }
  }

  // Partial sum `l` of R rows x 32 keys: the products of dimensions l, l + 16, l + 32, ...
  template <int R>
  SRT_INLINE void partial_scores(const float *const *q, const float *keys, int l, F (&out)[R][2]) {
    repeat<V>([&](auto i) {
      const float *row = keys + (16 * i + l) * kTile;
      const F left = in_register(load(row)), right = in_register(load(row + 16));
      repeat<R>([&](auto r) {
        const F at = set1(q[r][16 * i + l]);
        if constexpr (i == 0) {
          out[r][0] = mul(at, left);
          out[r][1] = mul(at, right);
        } else {
          out[r][0] = fma(at, left, out[r][0]);
          out[r][1] = fma(at, right, out[r][1]);
        }
      });
    });
  }

  template <int R>
  SRT_INLINE void add_to(F (&to)[R][2], const F (&from)[R][2]) {
    repeat<R>([&](auto r) {
      to[r][0] = add(to[r][0], from[r][0]);
      to[r][1] = add(to[r][1], from[r][1]);
    });
  }

  // R rows x 32 keys. Partial sums are added as the tree l^2, l^1, l^4, l^8 of their numbers: four
  // at a time in registers, then the fours.
  template <int R>
  SRT_FLATTEN void score_tile(const float *const *q, const float *keys, float *scores) {
    F fours[4][R][2];
#pragma GCC unroll 1
    for (int four = 0; four < 4; four++) {
      F a[R][2], b[R][2], c[R][2];
      partial_scores<R>(q, keys, 4 * four, a);
      partial_scores<R>(q, keys, 4 * four + 2, b);
      add_to<R>(a, b);
      partial_scores<R>(q, keys, 4 * four + 1, b);
      partial_scores<R>(q, keys, 4 * four + 3, c);
      add_to<R>(b, c);
      add_to<R>(a, b);
      repeat<R>([&](auto r) {
        fours[four][r][0] = a[r][0];
        fours[four][r][1] = a[r][1];
      });
    }
    repeat<R>([&](auto r) {
      repeat<2>([&](auto c) {
        const F left = add(fours[0][r][c], fours[1][r][c]);
        const F right = add(fours[2][r][c], fours[3][r][c]);
        store(scores + r * kChunk + 16 * c, add(left, right));
      });
    });
  }

  // out[r] += sum over t of p[r][t] * values[t], for R rows and C registers of columns.
  template <int R, int C>
  SRT_FLATTEN void value_tile(const float *p, const float *values, int n, float *out) {
    constexpr int kRecord = record_floats(kDim);
    F acc[R][C];
    repeat<R>([&](auto r) {
      repeat<C>([&](auto c) { acc[r][c] = load(out + r * kRecord + 16 * c); });
    });
    for (int t = 0; t < n; t++) {
      F v[C];
      repeat<C>([&](auto c) { v[c] = in_register(load(values + t * kDim + 16 * c)); });
      repeat<R>([&](auto r) {
        const F by = set1(p[r * kChunk + t]);
        repeat<C>([&](auto c) { acc[r][c] = fma(by, v[c], acc[r][c]); });
      });
    }
    repeat<R>([&](auto r) {
      repeat<C>([&](auto c) { store(out + r * kRecord + 16 * c, acc[r][c]); });
    });
  }

  static void all_scores(const float *const *q, int first, int rows, int n, const Scratch &s,
                         int at) {
    for (int t = 0; t < (n + 31) / 32 * 32; t += 32) {
      int r = first;
      for (; r + kScoreRows <= rows; r += kScoreRows)
        score_tile<kScoreRows>(q + r, s.keys + t, s.scores + r * kChunk + at + t);
      for (; r < rows; r++) score_tile<1>(q + r, s.keys + t, s.scores + r * kChunk + at + t);
    }
  }

  // Rows [row, row + R), keys [from, to) of those that are gathered, which begin at `at`.
  template <int R>
  SRT_INLINE void values_of(int row, int from, int to, const Scratch &s, int at) {
    constexpr int C = columns_at_once<V>(std::min(R, kLeastValueRows));
    for (int column = 0; column < V && from < to; column += C)
      value_tile<R, C>(s.scores + row * kChunk + at + from, s.values + from * kDim + 16 * column,
                       to - from, s.records + row * record_floats(kDim) + 16 * column);
  }

  // Adds the values of keys [at, at + n) of the chunk, for rows in tiles of R and, at the end, in
  // smaller ones. Row r reads only keys [lower(r), limit(r)), not the others times zero: so a value
  // that is not finite harms no row that may not see it.
  template <int R, class Lower, class Limit>
  static void all_values(int first, int rows, int n, const Scratch &s, int at, Lower lower,
                         Limit limit) {
    const auto within = [&](int key) { return std::max(0, std::min(n, key - at)); };
    int r = first;
    for (; r + R <= rows; r += R) {
      // What all R rows see: limits ascend, and so do lower ends.
      int from = within(lower(r + R - 1)), to = from < n ? within(limit(r)) : n;
      if (from >= to) from = to = n;
      for (int i = r; R > 1 && i < r + R; i++)
        values_of<1>(i, within(lower(i)), std::min(from, within(limit(i))), s, at);
      values_of<R>(r, from, to, s, at);
      for (int i = r; R > 1 && i < r + R; i++) values_of<1>(i, to, within(limit(i)), s, at);
    }
    if constexpr (R > 1)
      all_values<(R > kLeastValueRows ? kLeastValueRows : 1)>(r, rows, n, s, at, lower, limit);
  }

  // Queries [first_query, last_query) x one kv head. Queries are in order of their limits.
  static void attend_head(const AttentionCall &call, const AttentionUnit &unit, int kv,
                          const Scratch &s) {
    const int group = call.heads / call.kv_heads;
    const int rows = (unit.last_query - unit.first_query) * group;
    const size_t stride = size_t(call.kv_heads) * kDim;
    const T *k_pool = static_cast<const T *>(call.k_pool) + size_t(kv) * kDim;
    const T *v_pool = static_cast<const T *>(call.v_pool) + size_t(kv) * kDim;
    const float *q[kUnitRows];
    const auto query_of = [&](int row) -> const Query & {
      return call.queries[unit.first_query + row / group];
    };
    for (int r = 0; r < rows; r++)
      q[r] = call.q + query_of(r).token * call.ldq + size_t(kv * group + r % group) * kDim;
    const int end = call.queries[unit.last_query - 1].limit;
    for (int chunk = unit.first_chunk; chunk < unit.last_chunk; chunk++) {
      const int base = chunk * kChunk, n = std::min(kChunk, end - base);
      const int32_t *slots = unit.slots + base;
      int first = 0;  // rows whose last key comes before this chunk have nothing to do
      while (query_of(first).limit <= base) first++;
      for (int t = 0; t < n; t += kTile) {
        gather_keys(k_pool, stride, slots + t, std::min(kTile, n - t), s.keys);
        all_scores(q, first, rows, std::min(kTile, n - t), s, t);
      }
      for (int r = first; r < rows; r++) {
        float *out = s.records + r * record_floats(kDim);
        float *scores = s.scores + r * kChunk;
        softmax_chunk(scores, query_of(r).lower - base, query_of(r).limit - base, out[kDim],
                      out[kDim + 1], [&](auto i, F p) { store(scores + 16 * i, p); });
        for (int i = 0; i < V; i++) store(out + 16 * i, zero());
      }
      for (int t = 0; t < n; t += kTile) {
        gather_values(v_pool, stride, slots + t, std::min(kTile, n - t), s.values);
        all_values<kValueRows>(first, rows, std::min(kTile, n - t), s, t,
                               [&](int row) { return query_of(row).lower - base; },
                               [&](int row) { return query_of(row).limit - base; });
      }
      for (int r = first; r < rows; r++)
        keep_record(call, query_of(r), chunk, kv * group + r % group,
                    s.records + r * record_floats(kDim), s.states + r * record_floats(kDim));
    }
    for (int r = 0; r < rows; r++)
      finish_query(call, query_of(r), kv * group + r % group,
                   s.states + r * record_floats(kDim));
  }

  static void attend(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
    const int rows = (unit.last_query - unit.first_query) * (call.heads / call.kv_heads);
    Scratch s;
    s.keys = scratch;
    s.values = s.keys + kDim * kTile;
    s.scores = s.values + kDim * kTile;
    s.records = s.scores + size_t(rows) * kChunk;
    s.states = s.records + size_t(rows) * record_floats(kDim);
    for (int kv = unit.first_head; kv < unit.last_head; kv++) attend_head(call, unit, kv, s);
  }
};

// ---- by head size and pool type -----------------------------------------------------------------

template <class T, int V>
static void attend_with(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
  const int tokens = unit.last_query - unit.first_query, rows = tokens * (call.heads / call.kv_heads);
  // Scratch memory has room for kUnitRows. Larger heads do not fit the registers.
  if (tokens == 1 || (V <= 4 && rows <= kRowsInPlace && tokens * call.heads <= kUnitRows))
    RowKernel<T, V>::attend(call, unit, scratch);
  else
    BlockKernel<T, V>::attend(call, unit, scratch);
}

template <int V>
static void attend_over(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
  if (call.kv_format == SRT_F16)
    attend_with<f16, V>(call, unit, scratch);
  else
    attend_with<float, V>(call, unit, scratch);
}

static void attend(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
  if (call.kv_format == SRT_I16) return attend_words(call, unit, scratch);
  switch (call.head_dim) {
    case 16: return attend_over<1>(call, unit, scratch);
    case 32: return attend_over<2>(call, unit, scratch);
    case 64: return attend_over<4>(call, unit, scratch);
    case 80: return attend_over<5>(call, unit, scratch);
    case 96: return attend_over<6>(call, unit, scratch);
    case 128: return attend_over<8>(call, unit, scratch);
    case 256: return attend_over<16>(call, unit, scratch);
  }
}

// Fold a query's partial records, in the order of their chunks, into its output.
static void fold(const AttentionCall &call, const Query &query) {
  const int chunks = last_chunk_of(query) - first_chunk_of(query);
  for (int head = 0; head < call.heads; head++) {
    float *state = partial_record(call, query, first_chunk_of(query), head);
    for (int c = 1; c < chunks; c++)
      fold_record(state, partial_record(call, query, first_chunk_of(query) + c, head),
                  call.head_dim, false);
    finish_record(state, call.head_dim,
                  call.out + query.token * call.ldo + size_t(head) * call.head_dim);
  }
}

}  // namespace srt::SRT_ISA_NS
