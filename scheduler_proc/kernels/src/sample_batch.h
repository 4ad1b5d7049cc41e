// A step's results from its logits, one row at a time.
#pragma once
#include "kernels.h"

namespace srt {

// Draws sample `row` of the batch from its logits, with all the log-probabilities that are wanted
// for it. `logits` are unchanged afterwards. False if the row's masks allow no token.
bool sample_batch_row(const Kernels &kernels, const srt_batch &batch, int row, float *logits,
                      int vocab, SampleScratch &scratch);

// Prompt log-probability `index` of the batch, with its details.
void score_batch_row(const Kernels &kernels, const srt_batch &batch, int index,
                     const float *logits, int vocab, SampleScratch &scratch);

}  // namespace srt
