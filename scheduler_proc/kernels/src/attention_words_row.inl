// Attention of few rows over a pool of 16-bit numbers, which is read in place; and what its rows need
// in any case. See attention_words.inl.
#include "word_products.inl"

namespace srt::SRT_ISA_NS {

// A pool as one kv head sees it.
struct WordHead {
  const int16_t *codes;
  const float *scales;
  size_t stride, heads;
  int dim;

  WordHead(const void *pool, const AttentionCall &call, int kv)
      : stride(size_t(call.kv_heads) * call.head_dim), heads(call.kv_heads), dim(call.head_dim) {
    codes = static_cast<const int16_t *>(pool) + size_t(kv) * dim;
    scales = word_scales(pool, call.slots, stride) + kv;
  }

  const int16_t *at(int32_t slot) const { return codes + size_t(slot) * stride; }

  void prefetch_row(int32_t slot) const {
    for (int i = 0; i < dim; i += 32) prefetch(at(slot) + i);
  }
  // Of all kv heads, or nearly: those of a slot lie together.
  void prefetch_scales(const int32_t *slots, int n) const {
    for (int t = 0; t < n; t++) prefetch(scales + size_t(slots[t]) * heads);
  }

  // Of slots [0, n), and zeros up to the next multiple of 16.
  void gather_scales(const int32_t *slots, int n, float *out) const {
    for (int t = 0; t < n; t++) out[t] = scales[size_t(slots[t]) * heads];
    for (int t = n; t % 16 != 0; t++) out[t] = 0;
  }

  // Pairs of elements, as one number each: those of 16 slots side by side, [dim / 2][kChunk].
  void gather_keys(const int32_t *slots, int n, int16_t *out) const {
    const int pairs = dim / 2;
    for (int t = 0; t < n; t += 16)
      for (int pair = 0; pair < pairs; pair += 16) {
        F rows[16];
        for (int i = 0; i < 16; i++) {  // of the last pairs perhaps too many: see srt_layer
          const int16_t *key = at(slots[t + i < n ? t + i : t]) + 2 * pair;
          rows[i] = load(reinterpret_cast<const float *>(key));
        }
        transpose(rows);
        for (int i = 0; i < std::min(16, pairs - pair); i++)
          store(reinterpret_cast<float *>(out) + (pair + i) * kChunk + t, rows[i]);
      }
  }

  // Elements of two slots side by side, [n / 2 rounded up][dim].
  void gather_values(const int32_t *slots, int n, int16_t *out) const {
    for (int t = 0; t < n; t += 2, out += 2 * dim) {
      const int16_t *a = at(slots[t]), *b = at(slots[t + 1 < n ? t + 1 : t]);
      for (int d = 0; d < dim; d += 16) store_pairs(out + 2 * d, interleave(a + d, b + d));
    }
  }
};

// Kv heads [first, last) of a unit and memory for its rows; those of a head are by token, then by
// head of the group. More than one kv head only in place.
struct WordView {
  const AttentionCall &call;
  const AttentionUnit &unit;
  int first, last, group, rows, dim;
  bool in_place;
  int ldq;              // of queries: whole vectors of pairs
  int16_t *gathered;    // keys [dim / 2][kChunk][2] or values [kChunk / 2][dim][2] of the head
  float *scales;        // [kv heads][kChunk] of keys, then of values
  float *scores;        // [kv heads][rows][kChunk]; then codes of weights in their first halves
  float *records;       // [kv heads][rows]
  float *states;        // [kv heads][rows]
  float *steps;         // [kv heads][rows] scales of the queries
  float *weight_steps;  // [kv heads][rows] scales of the weights
  int16_t *queries;     // [kv heads][rows][ldq], zeros after the head

  WordView(const AttentionCall &call_, const AttentionUnit &unit_, int first_, int last_,
           bool in_place_, float *scratch)
      : call(call_), unit(unit_), first(first_), last(last_), in_place(in_place_) {
    group = call.heads / call.kv_heads;
    rows = (unit.last_query - unit.first_query) * group;
    dim = call.head_dim;
    ldq = (dim + 31) / 32 * 32;
    const size_t all = size_t(last - first) * rows;
    gathered = reinterpret_cast<int16_t *>(scratch);
    scales = in_place ? scratch : scratch + kChunk * dim / 2;
    scores = scales + (last - first) * kChunk;
    records = scores + all * kChunk;
    states = records + all * record_floats(dim);
    steps = states + all * record_floats(dim);
    weight_steps = steps + all;
    queries = reinterpret_cast<int16_t *>(weight_steps + all);
  }

  size_t at(int kv, int row) const { return size_t(kv - first) * rows + row; }
  int head(int kv, int row) const { return kv * group + row % group; }
  const Query &query(int row) const { return call.queries[unit.first_query + row / group]; }
  float *score(size_t local) const { return scores + local * kChunk; }
  const int16_t *code(size_t local) const {
    return reinterpret_cast<const int16_t *>(score(local));
  }
  float *record(size_t local) const { return records + local * record_floats(dim); }
  float *state(size_t local) const { return states + local * record_floats(dim); }
  float *scales_of(int kv) const { return scales + (kv - first) * kChunk; }
  // In place, where columns [16c, 16c + 16) of a record are integers until a chunk is done.
  int16_t *sums(size_t local, int c) const {
    return reinterpret_cast<int16_t *>(record(local) + 16 * c);
  }

  // `sums` of query row `local` and keys [16c, 16c + 16), times the scales of both.
  void keep_scores(size_t local, const float *key_scales, int c, F sums) const {
    const F scaled = mul(sums, load(key_scales + 16 * c));
    store(score(local) + 16 * c, mul(scaled, set1(steps[local])));
  }
};

// ---- a few rows: keys and values are read in place ------------------------------------------------

// Memory is prefetched kWordsAhead keys before it is read: keys, then the chunk's values, then the
// next chunk's keys. One row after the other, between the products: more at once wait for each other.
// The scales of a chunk's values are all read before its first value.
constexpr int kWordTile = 16, kWordsAhead = 16;

// Rows to be prefetched, n of them.
struct Ahead {
  const void *pool;
  const int32_t *slots;
  int n;
};

// Scores of R rows from `local` on and the keys of n slots, at most 16.
template <int R>
SRT_INLINE void key_sums(const WordView &view, size_t local, const WordHead &keys,
                         const int32_t *slots, int n, const WordHead &next, const Ahead &ahead,
                         I (&out)[R]) {
  const int16_t *queries = view.queries + local * view.ldq;
  LaneSums parts[R][16];
  for (int i = 0; i < 16; i++) {
    const int16_t *key = keys.at(slots[i < n ? i : 0]);
    if (i < ahead.n) next.prefetch_row(ahead.slots[i]);
    I sums[R];
    repeat<R>([&](auto r) { sums[r] = izero(); });
    for (int d = 0; d < view.ldq; d += 32) {
      const I w = load_pairs(key + d);
      repeat<R>([&](auto r) {
        sums[r] = in_register(add_pairs(sums[r], w, load_pairs(queries + r * view.ldq + d)));
      });
    }
    repeat<R>([&](auto r) { parts[r][i] = lane_sums(sums[r]); });
  }
  repeat<R>([&](auto r) { out[r] = sum_lanes(parts[r]); });
}

// How many vectors of output columns a value product of `rows` rows takes at once.
constexpr int columns_in_place(int rows) {
  const int fit = kInPlaceVectors / (rows + 1);
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// Adds products of codes with the values of n slots to sums: R rows from `local` on, C vectors of
// columns from `column` on.
template <int R, int C>
SRT_INLINE void value_sums(const WordView &view, size_t local, const int16_t *codes,
                           const WordHead &values, const int32_t *slots, int n, int column,
                           const WordHead &next, const Ahead &ahead) {
  const auto at = [&](int r, int c) { return view.sums(local + r, column + c); };
  I sums[R][C];
  repeat<R>([&](auto r) { repeat<C>([&](auto c) { sums[r][c] = load_pairs(at(r, c)); }); });
#pragma GCC unroll 1
  for (int t = 0; t < n; t += 2) {
    const int16_t *a = values.at(slots[t]) + 16 * column;
    const int16_t *b = values.at(slots[t + 1 < n ? t + 1 : t]) + 16 * column;
    if (t < ahead.n) next.prefetch_row(ahead.slots[t]);
    if (t + 1 < ahead.n) next.prefetch_row(ahead.slots[t + 1]);
    I w[C];
    repeat<C>([&](auto c) { w[c] = interleave(a + 16 * c, b + 16 * c); });
    repeat<R>([&](auto r) {
      const I by = set_pair(codes + r * 2 * kChunk + t);
      repeat<C>([&](auto c) { sums[r][c] = in_register(add_pairs(sums[r][c], w[c], by)); });
    });
  }
  repeat<R>([&](auto r) { repeat<C>([&](auto c) { store_pairs(at(r, c), sums[r][c]); }); });
}

// Those of a unit that ends at `end`, which nothing before it has prefetched.
static void prefetch_first_keys(const WordView &view, int end) {
  const int from = std::max(view.unit.first_chunk * kChunk, view.query(0).lower);
  const int to = std::min(from + kWordsAhead, std::min(end, view.unit.last_chunk * kChunk));
  for (int t = from; t < to; t++)
    for (int kv = view.first; kv < view.last; kv++)
      WordHead(view.call.k_pool, view.call, kv).prefetch_row(view.unit.slots[t]);
  WordHead(view.call.k_pool, view.call, view.first)
      .prefetch_scales(view.unit.slots + from, to - from);
}

// Calls f(kv head, first row, std::integral_constant<count>), at most kInPlaceTile rows at once, in
// runs as equal as possible.
template <class Call>
SRT_INLINE void in_runs(const WordView &view, Call f) {
  const int runs = (view.rows + kInPlaceTile - 1) / kInPlaceTile;
  for (int kv = view.first; kv < view.last; kv++)
    for (int run = 0, first = 0; run < runs; run++) {
      const int count = (view.rows - first + runs - run - 1) / (runs - run);
      repeat<kInPlaceTile>([&](auto i) {
        if (count == i + 1) f(kv, view.at(kv, first), std::integral_constant<int, i + 1>());
      });
      first += count;
    }
}

// Keys [lo, n) of a chunk.
SRT_FLATTEN void keys_in_place(const WordView &view, const int32_t *slots, int lo, int n) {
  const WordHead keys(view.call.k_pool, view.call, view.first);
  const WordHead values(view.call.v_pool, view.call, view.first);
  for (int t = lo / kWordTile * kWordTile; t < n; t += kWordTile) {
    const int count = std::min(kWordTile, n - t), later = t + kWordsAhead;
    const int value = std::max(lo, later - n);
    const Ahead ahead =
        later < n ? Ahead{view.call.k_pool, slots + later, std::min(kWordTile, n - later)}
                  : Ahead{view.call.v_pool, slots + value, std::min(kWordTile, n - value)};
    values.prefetch_scales(slots + t, count);
    keys.prefetch_scales(slots + later, std::min(kWordTile, n - later));
    for (int kv = view.first; kv < view.last; kv++)
      WordHead(view.call.k_pool, view.call, kv)
          .gather_scales(slots + t, count, view.scales_of(kv) + t);
    in_runs(view, [&](int kv, size_t local, auto rows) {
      I sums[rows.value];
      key_sums(view, local, WordHead(view.call.k_pool, view.call, kv), slots + t, count,
               WordHead(ahead.pool, view.call, kv), ahead, sums);
      repeat<rows.value>([&](auto r) {
        view.keep_scores(local + r, view.scales_of(kv), t / 16, to_float(sums[r]));
      });
    });
  }
}

// Values [lo, n) of a chunk; `next` keys of the next chunk will be read.
SRT_FLATTEN void values_in_place(const WordView &view, const int32_t *slots, int lo, int n,
                                 int next) {
  for (int t = lo / kWordTile * kWordTile; t < n; t += kWordTile) {
    const int count = std::min(kWordTile, n - t), later = t + kWordsAhead;
    const Ahead ahead =
        later < n ? Ahead{view.call.v_pool, slots + later, std::min(kWordTile, n - later)}
                  : Ahead{view.call.k_pool, slots + later, std::min(kWordTile, next + n - later)};
    if (later >= n)
      WordHead(view.call.k_pool, view.call, view.first).prefetch_scales(ahead.slots, ahead.n);
    in_runs(view, [&](int kv, size_t local, auto rows) {
      constexpr int R = rows.value, C = columns_in_place(R);
      const WordHead values(view.call.v_pool, view.call, kv);
      const WordHead soon(ahead.pool, view.call, kv);
      Ahead once = ahead;  // in the first round only
      const int16_t *codes = view.code(local) + t;
      int column = 0;
      for (; column + C <= view.dim / 16; column += C, once.n = 0)
        value_sums<R, C>(view, local, codes, values, slots + t, count, column, soon, once);
      for (; column < view.dim / 16; column++, once.n = 0)
        value_sums<R, 1>(view, local, codes, values, slots + t, count, column, soon, once);
    });
  }
}

}  // namespace srt::SRT_ISA_NS
