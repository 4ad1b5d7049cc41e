// Attention over a pool of 16-bit numbers, each head of a token with a scale: exact sums of
// products in 32 bits, twice as many a register as in float32.
//
// Queries, and within a chunk the weights of a query, are made integers too, each row with a scale
// of its own. A value's scale is multiplied into its weight. Sums are exact, so their order does
// not matter: a few rows read keys and values in place, many are multiplied in tiles of registers
// with those of a chunk, gathered. Softmax and folding are those of attention.inl.
//
// Integer attention with scales per token: Zhang et al. 2024 (SageAttention).
#include "attention_words_row.inl"

namespace srt::SRT_ISA_NS {

// Scores [lo, hi) of a row become the codes of weights times `scales`, zero elsewhere; `maximum`
// and the float after it get their maximum and sum. Returns the scale of the codes.
static float weigh_words(float *scores, int lo, int hi, const float *scales, float *maximum) {
  constexpr int kCount = kChunk / 16;
  F weights[kCount];
  softmax_chunk(scores, lo, hi, maximum[0], maximum[1],
                [&](auto i, F p) { weights[i] = mul(p, load(scales + 16 * i)); });
  // The scale of a key that does not count may be no number.
  if (lo > 0 || hi < kChunk)
    repeat<kCount>([&](auto i) {
      weights[i] = first_lanes(hi - 16 * i, weights[i], zero());
      weights[i] = first_lanes(lo - 16 * i, zero(), weights[i]);
    });
  F most = weights[0], all = weights[0];
  repeat<kCount - 1>([&](auto i) {
    most = larger_bits(most, weights[i + 1]);
    all = add(all, weights[i + 1]);
  });
  const float largest = largest_magnitude(most, most), by = summed_factor(largest, sum(all));
  auto *codes = reinterpret_cast<int16_t *>(scores);
  repeat<kCount>([&](auto i) { store_words(codes + 16 * i, mul(weights[i], set1(by))); });
  return by > 0 ? 1 / by : largest;
}

static void make_queries(const WordView &view) {
  for (int kv = view.first; kv < view.last; kv++)
    for (int r = 0; r < view.rows; r++) {
      const size_t local = view.at(kv, r);
      const float *q = view.call.q + view.query(r).token * view.call.ldq +
                       size_t(view.head(kv, r)) * view.dim;
      int16_t *codes = view.queries + local * view.ldq;
      std::fill(codes + view.dim, codes + view.ldq, 0);
      view.steps[local] = query_words(q, view.dim, codes);
    }
}

// Of keys [lo, n) of a chunk, for rows from `first` on.
static void chunk_scores(const WordView &view, const int32_t *slots, int first, int lo, int n) {
  if (view.in_place) return keys_in_place(view, slots, lo, n);
  const WordHead keys(view.call.k_pool, view.call, view.first);
  keys.gather_scales(slots, n, view.scales);
  keys.gather_keys(slots, n, view.gathered);
  pair_product(first, view.rows, view.queries, view.ldq, view.gathered, 2 * kChunk, view.dim / 2,
               (n + 15) / 16, [&](int row, int c, F sums) {
                 view.keep_scores(row, view.scales, c, sums);
               });
}

// Scores become codes of weights.
static void chunk_weights(const WordView &view, const int32_t *slots, int base, int first, int n) {
  for (int kv = view.first; kv < view.last; kv++) {
    WordHead(view.call.v_pool, view.call, kv).gather_scales(slots, n, view.scales_of(kv));
    for (int r = first; r < view.rows; r++) {
      const size_t local = view.at(kv, r);
      const Query &query = view.query(r);
      view.weight_steps[local] =
          weigh_words(view.score(local), query.lower - base, query.limit - base,
                      view.scales_of(kv), view.record(local) + view.dim);
    }
  }
}

// Records get the values [lo, n) of a chunk; `next` keys of the next chunk will be read.
static void chunk_values(const WordView &view, const int32_t *slots, int first, int lo, int n,
                         int next) {
  const auto keep = [&](size_t local, int c, F sums) {
    store(view.record(local) + 16 * c, mul(in_order(sums), set1(view.weight_steps[local])));
  };
  if (!view.in_place) {
    WordHead(view.call.v_pool, view.call, view.first).gather_values(slots, n, view.gathered);
    return pair_product(first, view.rows, view.code(0), 2 * kChunk, view.gathered, 2 * view.dim,
                        (n + 1) / 2, view.dim / 16, keep);
  }
  const size_t all = view.at(view.last, 0);
  for (size_t local = 0; local < all; local++)
    for (int c = 0; c < view.dim / 16; c++) store_pairs(view.sums(local, c), izero());
  values_in_place(view, slots, lo, n, next);
  for (size_t local = 0; local < all; local++)
    for (int c = 0; c < view.dim / 16; c++)
      keep(local, c, to_float(load_pairs(view.sums(local, c))));
}

static void attend_words(const WordView &view) {
  const AttentionCall &call = view.call;
  const AttentionUnit &unit = view.unit;
  const int end = view.query(view.rows - 1).limit;
  if (view.in_place) prefetch_first_keys(view, end);
  make_queries(view);
  // Calls f(kv head, row) for rows from `first` on.
  const auto each = [&](int first, auto f) {
    for (int kv = view.first; kv < view.last; kv++)
      for (int r = first; r < view.rows; r++) f(kv, r);
  };
  for (int chunk = unit.first_chunk; chunk < unit.last_chunk; chunk++) {
    const int base = chunk * kChunk, n = std::min(kChunk, end - base);
    const int lo = std::max(0, view.query(0).lower - base);
    const int32_t *slots = unit.slots + base;
    int first = 0;  // rows whose last key comes before this chunk have nothing to do
    while (view.query(first).limit <= base) first++;
    const int left = std::min((unit.last_chunk - chunk - 1) * kChunk, end - base - kChunk);
    chunk_scores(view, slots, first, lo, n);
    chunk_weights(view, slots, base, first, n);
    chunk_values(view, slots, first, lo, n, left);
    each(first, [&](int kv, int r) {
      const size_t local = view.at(kv, r);
      keep_record(call, view.query(r), chunk, view.head(kv, r), view.record(local),
                  view.state(local));
    });
  }
  each(0, [&](int kv, int r) {
    finish_query(call, view.query(r), view.head(kv, r), view.state(view.at(kv, r)));
  });
}

static void attend_words(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
  const int group = call.heads / call.kv_heads, tokens = unit.last_query - unit.first_query;
  // Scratch memory has room for kUnitRows.
  const bool in_place =
      tokens * group <= kInPlaceRows && (tokens == 1 || tokens * call.heads <= kUnitRows);
  const int step = in_place ? unit.last_head - unit.first_head : 1;
  for (int kv = unit.first_head; kv < unit.last_head; kv += step)
    attend_words(WordView(call, unit, kv, kv + step, in_place, scratch));
}

}  // namespace srt::SRT_ISA_NS
