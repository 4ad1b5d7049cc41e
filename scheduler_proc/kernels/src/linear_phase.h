// Hands a linear layer's channels and rows to the threads of a pool.
#pragma once
#include "kernels.h"
#include "thread_pool.h"

namespace srt {

// Rows that one unit takes: its activations stay in the core's cache while channels go by.
constexpr int kPanelRows = 256;

// Run up to three tasks over the same rows as one phase, ending with a barrier. Every thread of
// the pool calls this; `scratch` is its own.
void linear_phase(ThreadPool &pool, const Kernels &kernels, const LinearTask *tasks, int num_tasks,
                  int rows, uint8_t *scratch);

}  // namespace srt
