// How large the pieces are, and which part of which layer each is.
#include "linear_phase.h"

#include <algorithm>

namespace srt {

namespace {

// Rows and inputs of a panel, whose activations stay in a core's cache for all channels.
constexpr int kPanelRows = 512, kPanelInputs = 256 * 1536;
constexpr int kMaxPairs = 8;

int panels_of(int rows, int inputs) {
  const int most = std::clamp(kPanelInputs / inputs, 2 * kTileRows, kPanelRows);
  return (rows + most - 1) / most;
}

}  // namespace

int pairs_of(const LinearTask &task) {
  const int blocks = blocks_of(task.w[0]->n);
  return is_gated(task.output) ? blocks : (blocks + 1) / 2;
}

int plan_pieces(LinearTask *tasks, int num_tasks, int threads) {
  int pairs = 0, pieces = 0;
  for (int i = 0; i < num_tasks; i++) pairs += pairs_of(tasks[i]);
  const int step = std::clamp(pairs / (threads * kPiecesPerThread), 1, kMaxPairs);
  for (LinearTask *task = tasks; task < tasks + num_tasks; task++) {
    task->step = step;
    task->panels = panels_of(task->rows, task->w[0]->k);
    task->first_piece = pieces;
    pieces += task->panels * ((pairs_of(*task) + step - 1) / step);
  }
  return pieces;
}

void run_piece(const Kernels &kernels, const LinearTask *tasks, int num_tasks, int piece,
               uint8_t *scratch) {
  const LinearTask &task =
      *(std::upper_bound(tasks, tasks + num_tasks, piece,
                         [](int at, const LinearTask &each) { return at < each.first_piece; }) -
        1);
  piece -= task.first_piece;
  const int pairs = pairs_of(task), per_panel = (pairs + task.step - 1) / task.step;
  const int panel = piece / per_panel, first = piece % per_panel * task.step;
  const int64_t tiles = (task.rows + kTileRows - 1) / kTileRows;
  const int first_row = int(tiles * panel / task.panels) * kTileRows;
  const int last_row = std::min(task.rows, int(tiles * (panel + 1) / task.panels) * kTileRows);
  kernels.linear(task, first, std::min(pairs, first + task.step), first_row, last_row, scratch);
}

}  // namespace srt
