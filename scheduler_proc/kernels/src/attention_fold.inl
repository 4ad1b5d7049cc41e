// What every attention kernel does with a chunk of scores: its softmax, and folding its result into
// those of earlier chunks. All kernels of a level take these same steps in the same order.
#include <algorithm>

#include "kernels.h"

namespace srt::SRT_ISA_NS {

// The score of keys that do not count. If no key that counts has a higher one, the result is NaN.
constexpr float kLowest = -__builtin_inff();

// Passes the softmax numerators of scores[lo, hi), zero elsewhere, to keep(i, [16i, 16i + 16));
// gives the scores' maximum and the numerators' sum. Scores are in units of log2 (the queries are
// scaled for that), because powers of two are cheaper.
template <class Keep>
SRT_INLINE void softmax_chunk(const float *scores, int lo, int hi, float &maximum, float &total,
                              Keep keep) {
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
  maximum = largest(most);
  F all = zero();
  repeat<kCount>([&](auto i) {
    const F p = exp2(sub(x[i], set1(maximum)));  // of kLowest: 0
    keep(i, p);
    all = add(all, p);
  });
  total = sum(all);
}

// A record is [head_dim] unnormalised output, then the maximum and the sum.
SRT_INLINE void fold_record(float *state, const float *chunk, int head_dim, bool is_first) {
  if (is_first) {
    for (int i = 0; i < record_floats(head_dim); i += 16) store(state + i, load(chunk + i));
    return;
  }
  const float before = state[head_dim], now = chunk[head_dim], both = std::max(before, now);
  const F keep = exp2(set1(before - both)), take = exp2(set1(now - both));
  for (int i = 0; i < head_dim; i += 16)
    store(state + i, fma(load(chunk + i), take, mul(load(state + i), keep)));
  state[head_dim] = both;
  state[head_dim + 1] =
      first(fma(set1(chunk[head_dim + 1]), take, mul(set1(state[head_dim + 1]), keep)));
}

SRT_INLINE void finish_record(const float *state, int head_dim, float *out) {
  const F inverse = set1(1.f / state[head_dim + 1]);
  for (int i = 0; i < head_dim; i += 16) store(out + i, mul(load(state + i), inverse));
}

// The record among the partials for (query, chunk, head). A query without partials has its chunks
// folded into a running state instead, which finish_record writes out.
SRT_INLINE float *partial_record(const AttentionCall &call, const Query &query, int chunk,
                                 int head) {
  const size_t record =
      query.partials + size_t(chunk - first_chunk_of(query)) * call.heads + head;
  return call.partials + record * record_floats(call.head_dim);
}

// Fold in the record of (query, head) for a chunk, unless the window hides all of the chunk.
SRT_INLINE void keep_record(const AttentionCall &call, const Query &query, int chunk, int head,
                            const float *record, float *state) {
  if (query.lower >= (chunk + 1) * kChunk) return;
  if (query.partials >= 0)
    fold_record(partial_record(call, query, chunk, head), record, call.head_dim, true);
  else
    fold_record(state, record, call.head_dim, chunk == first_chunk_of(query));
}

SRT_INLINE void finish_query(const AttentionCall &call, const Query &query, int head,
                             const float *state) {
  if (query.partials >= 0) return;
  finish_record(state, call.head_dim,
                call.out + query.token * call.ldo + size_t(head) * call.head_dim);
}

}  // namespace srt::SRT_ISA_NS
