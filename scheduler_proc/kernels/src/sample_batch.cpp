#include "sample_batch.h"

#include <algorithm>
#include <cmath>

namespace srt {

namespace {

// Adjusts a row of logits as the batch asks, during its own lifetime only: log-probabilities are
// those of the logits as given.
class AdjustedLogits {
 public:
  AdjustedLogits(const srt_batch &batch, int row, float *logits, float *saved)
      : logits_(logits), saved_(saved) {
    if (!batch.adjust_indptr) return;
    const int first = batch.adjust_indptr[row];
    ids_ = batch.adjust_ids + first;
    count_ = batch.adjust_indptr[row + 1] - first;
    for (int i = 0; i < count_; i++) {
      float &logit = logits_[ids_[i]];
      saved_[i] = logit;
      const float repeat = batch.adjust_repeat[first + i];
      logit = (logit > 0 ? logit / repeat : logit * repeat) + batch.adjust_add[first + i];
    }
  }
  // The last one first, so that an id that is listed twice gets its original logit back.
  ~AdjustedLogits() {
    for (int i = count_; i-- > 0;) logits_[ids_[i]] = saved_[i];
  }
  AdjustedLogits(const AdjustedLogits &) = delete;
  AdjustedLogits &operator=(const AdjustedLogits &) = delete;

 private:
  float *logits_, *saved_;
  const int32_t *ids_ = nullptr;
  int count_ = 0;
};

SampleParams params_of(const srt_batch &batch, int row, int vocab) {
  const int32_t *suppressed = batch.suppress_indptr;
  SampleParams params{};
  params.temperature = batch.temperature[row];
  params.top_p = batch.top_p[row];
  params.min_p = batch.min_p[row];
  params.top_n_sigma = batch.top_n_sigma[row];
  params.top_k = batch.top_k[row];
  params.uniform = batch.uniform[row];
  params.suppress = suppressed ? batch.suppress_ids + suppressed[row] : nullptr;
  params.num_suppress = suppressed ? suppressed[row + 1] - suppressed[row] : 0;
  if (batch.mask_rows && batch.mask_rows[row] >= 0)
    params.mask = batch.masks + size_t(batch.mask_rows[row]) * ((vocab + 31) / 32);
  return params;
}

// Which detail row asks about row `row` (samples, then prompt log-probabilities); -1: none.
int find_detail(const srt_batch &batch, int row) {
  const int32_t *rows = batch.detail_rows, *end = rows + batch.num_details;
  const int32_t *found = std::lower_bound(rows, end, row);
  return found != end && *found == row ? static_cast<int>(found - rows) : -1;
}

void write_detail(const Kernels &kernels, const srt_batch &batch, int detail, const float *logits,
                  int vocab, const LogNormalizer &norm, SampleScratch &scratch) {
  const int first = batch.top_indptr[detail], last = batch.top_indptr[detail + 1];
  kernels.rank_top(logits, vocab, last - first, scratch, batch.top_ids + first);
  for (int i = first; i < last; i++)
    batch.top_logprobs[i] = logprob(norm, logits[batch.top_ids[i]]);
  for (int i = batch.detail_indptr[detail]; i < batch.detail_indptr[detail + 1]; i++)
    batch.id_logprobs[i] = logprob(norm, logits[batch.detail_ids[i]]);
}

}  // namespace

bool sample_batch_row(const Kernels &kernels, const srt_batch &batch, int row, float *logits,
                      int vocab, SampleScratch &scratch) {
  int32_t id;
  {
    const AdjustedLogits adjusted(batch, row, logits, scratch.saved);
    id = kernels.sample_row(logits, vocab, params_of(batch, row, vocab), scratch);
  }
  if (id < 0) return false;
  batch.next_ids[row] = id;
  batch.logprobs[row] = NAN;
  const int detail = find_detail(batch, row);
  if (!batch.want_logprob[row] && detail < 0) return true;
  const LogNormalizer norm = kernels.log_normalizer(logits, vocab);
  if (batch.want_logprob[row]) batch.logprobs[row] = logprob(norm, logits[id]);
  if (detail >= 0) write_detail(kernels, batch, detail, logits, vocab, norm, scratch);
  return true;
}

void score_batch_row(const Kernels &kernels, const srt_batch &batch, int index,
                     const float *logits, int vocab, SampleScratch &scratch) {
  const LogNormalizer norm = kernels.log_normalizer(logits, vocab);
  batch.prompt_logprobs[index] = logprob(norm, logits[batch.logprob_targets[index]]);
  const int detail = find_detail(batch, batch.num_samples + index);
  if (detail >= 0) write_detail(kernels, batch, detail, logits, vocab, norm, scratch);
}

}  // namespace srt
