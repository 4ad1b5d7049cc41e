// Attention planning: extends in blocks of tokens, decodes by request or split by chunks, shared
// prefixes once for all rows that read them.
//
// Any cut into units gives the same bits (see kernels.h), so the plan only minds the time. Prefixes
// are found in the slots themselves: rows that list the same slots for a whole chunk read the same
// keys, which is what the radix tree makes of a common prefix, at every depth of the tree.
#include "attention_plan.h"

#include <algorithm>
#include <cstring>

namespace srt {

namespace {

// A shared chunk is gathered once and then costs each row less than reading it alone. From how many
// rows on that pays is an estimate, not measured: it depends on how fast the caches are.
constexpr int kMinSharing = 3;
constexpr int kSharedChunks = 2;    // of one unit: small enough to balance the threads
constexpr int kPiecesPerThread = 4;  // into which long contexts and many rows are split
constexpr int kLeastRows = 96;       // of a unit of many: gathering keys costs all units the same

// Relative costs, in keys x query rows: estimates, used to order units only.
constexpr int kGatherRows = 12;  // gathering a chunk costs as much as this many rows of it
constexpr int kRowFactor = 2;    // a key that is read where it lies costs this much more

int chunk_cost(int rows, bool is_block) {
  return is_block ? rows + kGatherRows : rows * kRowFactor;
}

int compare_chunk(const int32_t *a, const int32_t *b, int chunk) {
  return std::memcmp(a + size_t(chunk) * kChunk, b + size_t(chunk) * kChunk,
                     kChunk * sizeof(int32_t));
}

// Of a block kernel's unit: as many rows as may be, unless threads would have little to do.
int tokens_per_unit(const AttentionShape &shape, int tokens) {
  const int group = shape.heads / shape.kv_heads;
  const int wanted = tokens * shape.heads / (shape.threads * kPiecesPerThread);
  return std::max(1, std::clamp(wanted, kLeastRows, kUnitRows) / group);
}

}  // namespace

void AttentionPlan::make(const AttentionShape &shape, const srt_batch &batch) {
  queries.clear();
  units.clear();
  folds.clear();
  decodes_.clear();
  num_records = 0;
  for (int row = 0; row < batch.num_rows; row++) {
    const int first = batch.qo_indptr[row], tokens = batch.qo_indptr[row + 1] - first;
    const int before = batch.kv_indptr[row + 1] - batch.kv_indptr[row] - tokens;
    const int at = static_cast<int>(queries.size());
    for (int i = 0; i < tokens; i++) {
      const int limit = before + i + 1;
      const int lower = shape.window > 0 ? std::max(0, limit - shape.window) : 0;
      queries.push_back({first + i, lower, limit, -1});
    }
    if (tokens == 1)
      decodes_.push_back({at, batch.kv_indices + batch.kv_indptr[row], first_chunk_of(queries[at])});
    else
      add_extend(shape, batch.kv_indices + batch.kv_indptr[row], at);
  }
  if (batch.share_prefixes && shape.window == 0) share(shape, 0, static_cast<int>(decodes_.size()), 0);
  add_decodes(shape);
  std::sort(units.begin(), units.end(), [](const AttentionUnit &a, const AttentionUnit &b) {
    return a.cost > b.cost;
  });
}

// The queries from `at` to the end are one row's.
void AttentionPlan::add_extend(const AttentionShape &shape, const int32_t *slots, int at) {
  const int end = static_cast<int>(queries.size());
  const int step = tokens_per_unit(shape, end - at);
  for (int first = at; first < end; first += step) {
    const int last = std::min(end, first + step);
    const int from = first_chunk_of(queries[first]), to = last_chunk_of(queries[last - 1]);
    const int rows = (last - first) * (shape.heads / shape.kv_heads);
    for (int head = 0; head < shape.kv_heads; head++)
      units.push_back({slots, first, last, head, head + 1, from, to,
                       (to - from) * chunk_cost(rows, last - first > 1)});
  }
}

// Find what decodes [first, last), which have everything before `chunk` in common, go on sharing.
void AttentionPlan::share(const AttentionShape &shape, int first, int last, int chunk) {
  const auto whole = [&](const Decode &d) {
    return queries[d.query].limit >= (chunk + 1) * kChunk;
  };
  last = static_cast<int>(
      std::partition(decodes_.begin() + first, decodes_.begin() + last, whole) - decodes_.begin());
  if (last - first < kMinSharing) return;
  std::sort(decodes_.begin() + first, decodes_.begin() + last,
            [&](const Decode &a, const Decode &b) {
              return compare_chunk(a.slots, b.slots, chunk) < 0;
            });
  for (int from = first; from < last;) {
    int to = from + 1;
    while (to < last && compare_chunk(decodes_[from].slots, decodes_[to].slots, chunk) == 0) to++;
    if (to - from >= kMinSharing) {
      const int end = common_chunks(from, to, chunk);
      add_shared(shape, from, to, chunk, end);
      share(shape, from, to, end);
    }
    from = to;
  }
}

// The first chunk from `chunk` on that decodes [first, last) do not all share.
int AttentionPlan::common_chunks(int first, int last, int chunk) const {
  int shortest = queries[decodes_[first].query].limit;
  for (int i = first + 1; i < last; i++)
    shortest = std::min(shortest, queries[decodes_[i].query].limit);
  for (; (chunk + 1) * kChunk <= shortest; chunk++)
    for (int i = first + 1; i < last; i++)
      if (compare_chunk(decodes_[first].slots, decodes_[i].slots, chunk) != 0) return chunk;
  return chunk;
}

void AttentionPlan::keep_partials(const AttentionShape &shape, Query &query, int32_t index) {
  if (query.partials >= 0) return;
  query.partials = num_records;
  num_records += (last_chunk_of(query) - first_chunk_of(query)) * shape.heads;
  folds.push_back(index);
}

// Chunks [chunk, end) are read once for decodes [first, last).
void AttentionPlan::add_shared(const AttentionShape &shape, int first, int last, int chunk, int end) {
  const int step = tokens_per_unit(shape, last - first), group = shape.heads / shape.kv_heads;
  for (int from = first; from < last; from += step) {
    const int to = std::min(last, from + step), at = static_cast<int>(queries.size());
    for (int i = from; i < to; i++) {
      decodes_[i].own = end;
      keep_partials(shape, queries[decodes_[i].query], decodes_[i].query);
      queries.push_back(Query(queries[decodes_[i].query]));
    }
    const int cost = chunk_cost((to - from) * group, to - from > 1);
    for (int c = chunk; c < end; c += kSharedChunks)
      for (int head = 0; head < shape.kv_heads; head++)
        units.push_back({decodes_[first].slots, at, at + to - from, head, head + 1, c,
                         std::min(end, c + kSharedChunks),
                         std::min(kSharedChunks, end - c) * cost});
  }
}

// What every decode reads alone: whole requests, or pieces of them where there are few.
void AttentionPlan::add_decodes(const AttentionShape &shape) {
  int total = 0;
  for (const Decode &d : decodes_) total += last_chunk_of(queries[d.query]) - d.own;
  const int piece = std::max(1, total / (shape.threads * kPiecesPerThread));
  // So few units that some threads would have none: take the kv heads apart too.
  const int heads = total < 2 * shape.threads ? 1 : shape.kv_heads;
  for (const Decode &d : decodes_) {
    Query &query = queries[d.query];
    const int end = last_chunk_of(query);
    if (end - d.own > piece) keep_partials(shape, query, d.query);
    for (int c = d.own; c < end; c += piece)
      for (int head = 0; head < shape.kv_heads; head += heads)
        units.push_back({d.slots, d.query, d.query + 1, head, std::min(shape.kv_heads, head + heads), c,
                         std::min(end, c + piece),
                         std::min(piece, end - c) * chunk_cost(shape.heads * heads / shape.kv_heads, false)});
  }
}

}  // namespace srt
