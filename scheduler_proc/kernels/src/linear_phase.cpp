// How large the pieces are, and which part of which layer each is.
#include "linear_phase.h"

#include <algorithm>

namespace srt {

namespace {

// Rows and inputs of a panel, whose activations stay in a core's cache for all channels.
constexpr int kPanelRows = 512, kPanelInputs = 256 * 1536;
constexpr int kPiecesPerThread = 6;
constexpr int kMaxPairs = 8;

int pairs_of(const LinearTask &task) {
  const int blocks = blocks_of(task.w[0]->n);
  return is_gated(task.output) ? blocks : (blocks + 1) / 2;
}

int panels_of(int rows, int inputs) {
  const int most = std::clamp(kPanelInputs / inputs, 2 * kTileRows, kPanelRows);
  return (rows + most - 1) / most;
}

}  // namespace

LinearPieces::LinearPieces(const LinearTask *tasks, int num_tasks, int rows, int threads)
    : tasks_(tasks), rows_(rows), panels_(panels_of(rows, tasks[0].w[0]->k)) {
  int pairs = 0;
  for (int i = 0; i < num_tasks; i++) pairs += pairs_of(tasks[i]);
  step_ = std::max(1, std::min(kMaxPairs, pairs / (threads * kPiecesPerThread)));
  for (int i = 0; i < num_tasks; i++)
    per_panel_ += pieces_[i] = (pairs_of(tasks[i]) + step_ - 1) / step_;
}

void LinearPieces::run(const Kernels &kernels, int piece, uint8_t *scratch) const {
  const int panel = piece / per_panel_;
  int task = 0;
  for (piece %= per_panel_; piece >= pieces_[task]; task++) piece -= pieces_[task];
  const int64_t tiles = (rows_ + kTileRows - 1) / kTileRows;
  const int first_row = int(tiles * panel / panels_) * kTileRows;
  const int last_row = std::min(rows_, int(tiles * (panel + 1) / panels_) * kTileRows);
  const int first = piece * step_, last = std::min(pairs_of(tasks_[task]), first + step_);
  kernels.linear(tasks_[task], first, last, first_row, last_row, scratch);
}

}  // namespace srt
