// Attention planning: rows of many tokens in blocks of tokens; rows of few tokens whole, or split
// by chunks; shared prefixes once for all short rows that read them.
//
// Any cut into units gives the same bits (see kernels.h), so the plan affects only time. Prefixes
// are found in the slots themselves: rows that list the same slots for a whole chunk read the same
// keys. A common prefix gets the same slots from the radix tree, at every depth of it.
#include "attention_plan.h"

#include <algorithm>
#include <cstring>

namespace srt {

namespace {

// A row of at most this many tokens is short. With more, it pays to gather its keys.
constexpr int kFewTokens = 16;
// Short rows keep a record (head_dim + 2 floats) of each token, head and chunk, if others share or
// read the chunk. Beyond this many records, rows of several tokens are treated as long ones.
constexpr int64_t kMaxRecords = 1 << 17;
// A shared chunk is gathered once and then costs each token less than reading it alone. That this
// pays from so few tokens on is an estimate, not measured: it depends on the speed of the caches.
constexpr int kMinSharing = 3;
constexpr int kSharedChunks = 2;    // of one unit: small enough to balance the threads
constexpr int kPiecesPerThread = 4;  // into which long contexts and many rows are split
constexpr int kLeastRows = 96;       // of a unit of many tokens: each unit gathers the keys

// Relative costs, in keys x query rows: estimates, used to order units only.
constexpr int kGatherRows = 12;  // gathering a chunk costs as much as this many rows of it
constexpr int kRowFactor = 2;    // a key that is read in place costs this many times as much

int chunk_cost(int rows, bool is_block) {
  return is_block ? rows + kGatherRows : rows * kRowFactor;
}

int compare_chunk(const int32_t *a, const int32_t *b, int chunk) {
  return std::memcmp(a + size_t(chunk) * kChunk, b + size_t(chunk) * kChunk,
                     kChunk * sizeof(int32_t));
}

// Of a block kernel's unit: as many as allowed, unless threads would have little to do.
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
  short_rows_.clear();
  num_records = 0;
  int64_t records = 0;
  for (int row = 0; row < batch.num_rows; row++) {
    const int first = batch.qo_indptr[row], tokens = batch.qo_indptr[row + 1] - first;
    const int before = batch.kv_indptr[row + 1] - batch.kv_indptr[row] - tokens;
    const int at = static_cast<int>(queries.size());
    for (int i = 0; i < tokens; i++) {
      const int limit = before + i + 1;
      const int lower = shape.window > 0 ? std::max(0, limit - shape.window) : 0;
      queries.push_back({first + i, lower, limit, -1});
    }
    const int32_t *slots = batch.kv_indices + batch.kv_indptr[row];
    const int chunks = last_chunk_of(queries.back()) - first_chunk_of(queries[at]);
    if (tokens > 1) records += int64_t(tokens) * chunks * shape.heads;
    if (tokens == 1 || (tokens <= kFewTokens && records <= kMaxRecords))
      short_rows_.push_back({at, at + tokens, slots, first_chunk_of(queries[at])});
    else
      add_extend(shape, slots, at);
  }
  if (batch.share_prefixes && shape.window == 0)
    share(shape, 0, static_cast<int>(short_rows_.size()), 0);
  add_short_rows(shape);
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

// Find what short rows [first, last), which share everything before `chunk`, share after that.
void AttentionPlan::share(const AttentionShape &shape, int first, int last, int chunk) {
  const auto whole = [&](const ShortRow &row) {  // for all its tokens
    return queries[row.first].limit >= (chunk + 1) * kChunk;
  };
  const auto begin = short_rows_.begin();
  last = static_cast<int>(std::partition(begin + first, begin + last, whole) - begin);
  if (last - first < 2) return;
  std::sort(begin + first, begin + last, [&](const ShortRow &a, const ShortRow &b) {
    return compare_chunk(a.slots, b.slots, chunk) < 0;
  });
  for (int from = first; from < last;) {
    int to = from, tokens = 0;
    for (; to < last; to++) {
      if (compare_chunk(short_rows_[from].slots, short_rows_[to].slots, chunk) != 0) break;
      tokens += short_rows_[to].last - short_rows_[to].first;
    }
    if (to - from > 1 && tokens >= kMinSharing) {
      const int end = common_chunks(from, to, chunk);
      add_shared(shape, from, to, chunk, end);
      share(shape, from, to, end);
    }
    from = to;
  }
}

// The first chunk from `chunk` on that short rows [first, last) do not all share.
int AttentionPlan::common_chunks(int first, int last, int chunk) const {
  const ShortRow &one = short_rows_[first];
  int shortest = queries[one.first].limit;
  for (int i = first + 1; i < last; i++)
    shortest = std::min(shortest, queries[short_rows_[i].first].limit);
  for (; (chunk + 1) * kChunk <= shortest; chunk++)
    for (int i = first + 1; i < last; i++)
      if (compare_chunk(one.slots, short_rows_[i].slots, chunk) != 0) return chunk;
  return chunk;
}

void AttentionPlan::keep_partials(const AttentionShape &shape, const ShortRow &row) {
  for (int i = row.first; i < row.last; i++) {
    Query &query = queries[i];
    if (query.partials >= 0) return;  // the row has its records already
    query.partials = num_records;
    num_records += (last_chunk_of(query) - first_chunk_of(query)) * shape.heads;
    folds.push_back(i);
  }
}

// Chunks [chunk, end) are read once for short rows [first, last).
void AttentionPlan::add_shared(const AttentionShape &shape, int first, int last, int chunk, int end) {
  const int at = static_cast<int>(queries.size()), group = shape.heads / shape.kv_heads;
  for (int i = first; i < last; i++) {
    ShortRow &row = short_rows_[i];
    row.own = end;
    keep_partials(shape, row);
    for (int query = row.first; query < row.last; query++) queries.push_back(Query(queries[query]));
  }
  const int all = static_cast<int>(queries.size());
  const int step = tokens_per_unit(shape, all - at);
  for (int from = at; from < all; from += step) {
    const int to = std::min(all, from + step);
    const int cost = chunk_cost((to - from) * group, to - from > 1);
    for (int c = chunk; c < end; c += kSharedChunks)
      for (int head = 0; head < shape.kv_heads; head++)
        units.push_back({short_rows_[first].slots, from, to, head, head + 1, c,
                         std::min(end, c + kSharedChunks),
                         std::min(kSharedChunks, end - c) * cost});
  }
}

// Units for what each short row reads alone: whole requests, or pieces if there are few requests.
void AttentionPlan::add_short_rows(const AttentionShape &shape) {
  int total = 0;
  for (const ShortRow &row : short_rows_) total += last_chunk_of(queries[row.last - 1]) - row.own;
  const int piece = std::max(1, total / (shape.threads * kPiecesPerThread));
  // If there are so few chunks that some threads would get no unit, kv heads are split too.
  const int heads = total < 2 * shape.threads ? 1 : shape.kv_heads;
  for (const ShortRow &row : short_rows_) add_own(shape, row, piece, heads);
}

void AttentionPlan::add_own(const AttentionShape &shape, const ShortRow &row, int piece, int heads) {
  if (last_chunk_of(queries[row.last - 1]) - row.own > piece) keep_partials(shape, row);
  const int step = tokens_per_unit(shape, row.last - row.first);
  for (int first = row.first; first < row.last; first += step) {
    const int last = std::min(row.last, first + step), end = last_chunk_of(queries[last - 1]);
    const int cost = chunk_cost((last - first) * shape.heads * heads / shape.kv_heads, last - first > 1);
    // With a window, later tokens do not read all that the first one does.
    const int begin = std::max(row.own, first_chunk_of(queries[first]));
    for (int c = begin; c < end; c += piece)
      for (int head = 0; head < shape.kv_heads; head += heads)
        units.push_back({row.slots, first, last, head, std::min(shape.kv_heads, head + heads), c,
                         std::min(end, c + piece), std::min(piece, end - c) * cost});
  }
}

}  // namespace srt
