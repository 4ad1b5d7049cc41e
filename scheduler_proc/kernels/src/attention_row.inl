// Attention of few query rows: keys and values are read in place, by lanes along the head. For the
// reduction, see attention.inl.
#include <cstring>

#include "kernels.h"

namespace srt::SRT_ISA_NS {

// How many vectors of output columns, a divisor of V, a value product of `rows` rows takes at once,
// so that its sums and the values of a key stay in registers.
template <int V>
constexpr int columns_at_once(int rows) {
  int columns = V <= 6 ? V : 4;
  while (columns > 1 && (V % columns != 0 || columns * (rows + 1) >= kVectorRegisters)) columns--;
  return columns;
}

template <class T, int V>
struct RowKernel {
  static constexpr int kDim = 16 * V;
  // Query rows at once: as many as fit the registers, with the key that they are multiplied with.
  static constexpr int kRows = V <= 4 && kVectorRegisters >= 32 ? 6 : 4;

  // scores[h][t] for H query rows of one kv head and keys [0, n) of a tile of 16.
  template <int H>
  SRT_INLINE void scores(const float *q, const T *keys, size_t stride, const int32_t *slots, int n,
                         float *out) {
    F query[H][V], parts[H][16];
    repeat<H>([&](auto h) {
      repeat<V>([&](auto i) { query[h][i] = load(q + h * kDim + 16 * i); });
    });
    for (int t = 0; t < 16; t++) {
      const T *key = keys + size_t(slots[t < n ? t : 0]) * stride;
      F k[V];
      repeat<V>([&](auto i) { k[i] = load(key + 16 * i); });
      repeat<H>([&](auto h) {
        F part = mul(query[h][0], k[0]);
        repeat<V - 1>([&](auto i) { part = fma(query[h][i + 1], k[i + 1], part); });
        parts[h][t] = part;
      });
    }
    repeat<H>([&](auto h) { store(out + h * kChunk, sum_lanes(parts[h])); });
  }

  // out[h] += sum over t of p[h][t] * value t, for C registers of columns.
  template <int H, int C>
  SRT_INLINE void values(const float *p, const T *column, size_t stride, const int32_t *slots,
                         int n, float *out, size_t ldo) {
    F acc[H][C];
    repeat<H>([&](auto h) {
      repeat<C>([&](auto c) { acc[h][c] = load(out + h * ldo + 16 * c); });
    });
    for (int t = 0; t < n; t++) {
      const T *value = column + size_t(slots[t]) * stride;
      F v[C];
      repeat<C>([&](auto c) { v[c] = load(value + 16 * c); });
      repeat<H>([&](auto h) {
        const F by = set1(p[h * kChunk + t]);
        repeat<C>([&](auto c) { acc[h][c] = fma(by, v[c], acc[h][c]); });
      });
    }
    repeat<H>([&](auto h) {
      repeat<C>([&](auto c) { store(out + h * ldo + 16 * c, acc[h][c]); });
    });
  }

  // Calls f(first row, std::integral_constant<count>) over rows [first, last), in runs as equal as
  // possible.
  template <class Call>
  SRT_INLINE void runs(int first, int last, Call f) {
    while (first < last) {
      const int left = last - first, runs = (left + kRows - 1) / kRows;
      const int count = (left + runs - 1) / runs;
      repeat<kRows>([&](auto i) {
        if (count == i + 1) f(first, std::integral_constant<int, i + 1>());
      });
      first += count;
    }
  }

  // Query rows of a kv head are ordered by token, then by head; `rows` of them in all.
  struct View {
    const AttentionCall &call;
    const AttentionUnit &unit;
    const float *q;  // [kv heads of the unit][rows][kDim]
    float *scores;   // [kv heads of the unit][rows][kChunk]
    float *records;  // [kv heads of the unit][rows]
    size_t stride;
    int group, rows;
  };

  SRT_INLINE void prefetch_rows(const View &view, const void *pool, const int32_t *slots, int n) {
    const size_t bytes = size_t(view.unit.last_head - view.unit.first_head) * kDim * sizeof(T);
    for (int t = 0; t < n; t++) {
      const T *row = static_cast<const T *>(pool) + size_t(slots[t]) * view.stride +
                     size_t(view.unit.first_head) * kDim;
      for (size_t at = 0; at < bytes; at += 64) prefetch(reinterpret_cast<const char *>(row) + at);
    }
  }

  // Memory is prefetched kAhead keys before it is read: keys, then the chunk's values, then the
  // next chunk's keys. The rows of a tile at once: row by row between the products took 0.8 to 0.9
  // of the time where slots follow each other, and 1.2 times as long where they do not.
  static constexpr int kTile = 16, kAhead = kRowsAhead;

  // Of query rows [from, to).
  SRT_FLATTEN void chunk_scores(const View &view, const int32_t *slots, int from, int to, int lo,
                                int n) {
    const T *keys = static_cast<const T *>(view.call.k_pool);
    for (int t = lo / kTile * kTile; t < n; t += kTile) {
      const int ahead = t + kAhead, behind = std::max(lo, ahead - n);
      if (ahead < n)
        prefetch_rows(view, view.call.k_pool, slots + ahead, std::min(kTile, n - ahead));
      else
        prefetch_rows(view, view.call.v_pool, slots + behind, std::min(kTile, n - behind));
      for (int kv = view.unit.first_head; kv < view.unit.last_head; kv++)
        runs(from, to, [&](int row, auto count) {
          const size_t local = (kv - view.unit.first_head) * view.rows + row;
          scores<count.value>(view.q + local * kDim, keys + size_t(kv) * kDim, view.stride,
                              slots + t, std::min(kTile, n - t), view.scores + local * kChunk + t);
        });
    }
  }

  // Values [first, last) of a chunk, for query rows [from, to).
  SRT_INLINE void tile_values(const View &view, const int32_t *slots, int from, int to, int first,
                              int last) {
    const T *values_pool = static_cast<const T *>(view.call.v_pool);
    const size_t ldo = record_floats(kDim);
    for (int kv = view.unit.first_head; kv < view.unit.last_head; kv++)
      runs(from, to, [&](int row, auto count) {
        constexpr int C = columns_at_once<V>(count.value);
        const size_t local = (kv - view.unit.first_head) * view.rows + row;
        for (int column = 0; column < V; column += C)
          values<count.value, C>(view.scores + local * kChunk + first,
                                 values_pool + size_t(kv) * kDim + 16 * column, view.stride,
                                 slots + first, last - first,
                                 view.records + local * ldo + 16 * column, ldo);
      });
  }

  // Of queries [from, to) of the unit, which begin with `queries`. `next`: how many keys of the next
  // chunk will be read; their slots follow these. A query reads only what it sees, not the rest times
  // zero: so a value that is not finite harms no row that may not see it.
  SRT_FLATTEN void chunk_values(const View &view, const int32_t *slots, const Query *queries,
                                int from, int to, int base, int next) {
    const int group = view.group;
    const int lo = std::max(0, queries[from].lower - base);
    const int n = std::min(kChunk, queries[to - 1].limit - base);
    for (int t = lo / kTile * kTile; t < n; t += kTile) {
      const int first = std::max(t, lo), last = std::min(t + kTile, n), ahead = t + kAhead;
      if (ahead < n)
        prefetch_rows(view, view.call.v_pool, slots + ahead, std::min(kTile, n - ahead));
      else if (ahead - n < next)
        prefetch_rows(view, view.call.k_pool, slots + ahead, std::min(kTile, next + n - ahead));
      const bool all_see =
          queries[to - 1].lower - base <= first && queries[from].limit - base >= last;
      const int step = all_see ? to - from : 1;
      for (int i = from; i < to; i += step)
        tile_values(view, slots, i * group, (i + step) * group,
                    std::max(first, queries[i].lower - base),
                    std::min(last, queries[i].limit - base));
    }
  }

  // A row of query rows per kv head, in the order of View.
  SRT_INLINE void copy_queries(const AttentionCall &call, const AttentionUnit &unit, float *to) {
    const size_t count = size_t(call.heads / call.kv_heads) * kDim;
    for (int kv = unit.first_head; kv < unit.last_head; kv++)
      for (int i = unit.first_query; i < unit.last_query; i++, to += count)
        std::memcpy(to, call.q + call.queries[i].token * call.ldq + kv * count,
                    count * sizeof(float));
  }

  // Tokens in the order of their limits: all chunks of the unit; within each tile, head by head.
  static void attend(const AttentionCall &call, const AttentionUnit &unit, float *scratch) {
    const Query *queries = call.queries + unit.first_query;
    const int tokens = unit.last_query - unit.first_query, group = call.heads / call.kv_heads;
    const int rows = tokens * group, all = (unit.last_head - unit.first_head) * rows;
    const size_t record = record_floats(kDim);
    float *records = scratch + size_t(all) * kChunk, *states = records + all * record;
    const float *q = call.q + queries[0].token * call.ldq + size_t(unit.first_head) * group * kDim;
    if (tokens > 1) {
      float *copy = states + all * record;
      copy_queries(call, unit, copy);
      q = copy;
    }
    const View view{call, unit, q, scratch, records, size_t(call.kv_heads) * kDim, group, rows};
    // Calls f(query, its head, row in the order of View) for queries [from, to).
    const auto each = [&](int from, int to, auto f) {
      for (int kv = unit.first_head; kv < unit.last_head; kv++)
        for (int row = from * group; row < to * group; row++)
          f(queries[row / group], kv * group + row % group, (kv - unit.first_head) * rows + row);
    };
    for (int chunk = unit.first_chunk; chunk < unit.last_chunk; chunk++) {
      const int base = chunk * kChunk;
      int from = 0, to = tokens;  // queries that see keys of this chunk
      while (from < to && queries[from].limit <= base) from++;
      while (to > from && queries[to - 1].lower >= base + kChunk) to--;
      if (from == to) continue;
      const int32_t *slots = unit.slots + base;
      const int lo = std::max(0, queries[from].lower - base);
      const int n = std::min(kChunk, queries[to - 1].limit - base);
      const int left = std::min((unit.last_chunk - chunk - 1) * kChunk,
                                queries[tokens - 1].limit - base - kChunk);
      if (chunk == unit.first_chunk)
        prefetch_rows(view, call.k_pool, slots + lo, std::min(kAhead, n - lo));
      chunk_scores(view, slots, from * group, to * group, lo, n);
      each(from, to, [&](const Query &query, int, size_t row) {
        float *out = records + row * record;
        float *scores = view.scores + row * kChunk;
        softmax_chunk(scores, query.lower - base, query.limit - base, out[kDim], out[kDim + 1],
                      [&](auto i, F p) { store(scores + 16 * i, p); });
        for (int i = 0; i < V; i++) store(out + 16 * i, zero());
      });
      chunk_values(view, slots, queries, from, to, base, std::max(0, left));
      each(from, to, [&](const Query &query, int head, size_t row) {
        if (query.partials < 0)
          fold_record(states + row * record, records + row * record, kDim,
                      chunk == first_chunk_of(query));
        else
          fold_record(partial_record(call, query, chunk, head), records + row * record, kDim, true);
      });
    }
    each(0, tokens, [&](const Query &query, int head, size_t row) {
      if (query.partials < 0)
        finish_record(states + row * record, kDim,
                      call.out + query.token * call.ldo + size_t(head) * kDim);
    });
  }
};

}  // namespace srt::SRT_ISA_NS
