// Cuts linear layers into pieces: enough for every thread to get several, none so small that taking
// it costs more than doing it.
#include "linear_phase.h"

#include <algorithm>

namespace srt {

namespace {

constexpr int kPiecesPerThread = 6;
constexpr int kMaxPairs = 8;

int pairs_of(const LinearTask &task) {
  const int blocks = blocks_of(task.w[0]->n);
  return task.output == Output::kSiluMul ? blocks : (blocks + 1) / 2;
}

}  // namespace

void linear_phase(ThreadPool &pool, const Kernels &kernels, const LinearTask *tasks, int num_tasks,
                  int rows, uint8_t *scratch) {
  int total = 0;
  for (int i = 0; i < num_tasks; i++) total += pairs_of(tasks[i]);
  const int step = std::max(1, std::min(kMaxPairs, total / (pool.size() * kPiecesPerThread)));
  const int panels = (rows + kPanelRows - 1) / kPanelRows;
  int pieces[3], all = 0;
  for (int i = 0; i < num_tasks; i++) all += pieces[i] = (pairs_of(tasks[i]) + step - 1) / step;
  pool.share(all * panels, [&](int piece) {
    const int panel = piece / all;
    int i = 0;
    for (piece %= all; piece >= pieces[i]; i++) piece -= pieces[i];
    const int first_row = int(int64_t(rows) * panel / panels);
    const int last_row = int(int64_t(rows) * (panel + 1) / panels);
    const int first = piece * step, last = std::min(pairs_of(tasks[i]), first + step);
    kernels.linear(tasks[i], first, last, first_row, last_row, scratch);
  });
}

}  // namespace srt
