// Cuts a step's attention into units of work, once per step for all layers.
#pragma once
#include <vector>

#include "kernels.h"

namespace srt {

// What the plan depends on, besides the batch.
struct AttentionShape {
  int heads, kv_heads, head_dim, window;
  int threads;
};

struct AttentionPlan {
  std::vector<Query> queries;        // one per token, and one more for each shared run of chunks
  std::vector<AttentionUnit> units;  // most expensive first
  std::vector<int32_t> folds;        // queries whose partials are to be folded
  int num_records = 0;               // of partials

  // Plan for `batch`; reuses the memory of the last plan.
  void make(const AttentionShape &shape, const srt_batch &batch);

 private:
  // A row of few tokens.
  struct ShortRow {
    int32_t first, last;  // its queries
    const int32_t *slots;
    int32_t own;  // the first chunk that is not read through a shared unit
  };
  std::vector<ShortRow> short_rows_;

  void add_extend(const AttentionShape &shape, const int32_t *slots, int at);
  void share(const AttentionShape &shape, int first, int last, int chunk);
  int common_chunks(int first, int last, int chunk) const;
  void keep_partials(const AttentionShape &shape, const ShortRow &row);
  void add_shared(const AttentionShape &shape, int first, int last, int chunk, int end);
  void add_short_rows(const AttentionShape &shape);
  void add_own(const AttentionShape &shape, const ShortRow &row, int piece, int heads);
};

}  // namespace srt
