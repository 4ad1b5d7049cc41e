// What the phases of a step have in common: their names and times, and how rows are shared out.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>

#include "thread_pool.h"
#include "workspace.h"

namespace srt {

enum Phase {
  kEmbed, kNorm, kQkv, kRope, kAttention, kFold, kOut, kRouter, kGateUp, kDown, kCombine, kHead,
  kSample, kOther,
};

// Seconds per phase, as thread 0 sees them.
class PhaseClock {
 public:
  void start() { ticked_ = now(); }
  // The time since the last call was the phase's.
  void tick(Phase phase) {
    const double time = now();
    seconds_[phase] += time - ticked_;
    ticked_ = time;
  }
  void tick(const ThreadPool::Member &member, Phase phase) {
    if (member.thread() == 0) tick(phase);
  }
  // Copies the seconds and begins again with none.
  void take(double *seconds) {
    std::copy(seconds_.begin(), seconds_.end(), seconds);
    seconds_.fill(0);
  }

 private:
  static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
  }
  std::array<double, SRT_NUM_PHASES> seconds_{};
  double ticked_ = 0;
};

// Calls part(first, last) for parts of [0, rows): `unit` rows at a time, the last perhaps fewer.
template <class Rows>
void each_part(ThreadPool::Member &member, int rows, int unit, Rows part) {
  constexpr int kRowPieces = 8;  // per thread
  const int step = std::max(1, rows / (member.size() * kRowPieces * unit)) * unit;
  member.share((rows + step - 1) / step, [&](int piece) {
    const int end = std::min(rows, (piece + 1) * step);
    for (int i = piece * step; i < end; i += unit) part(i, std::min(end, i + unit));
  });
}

template <class Row>
void each_row(ThreadPool::Member &member, int rows, Row row) {
  each_part(member, rows, 1, [&](int i, int) { row(i); });
}

// A linear layer's input, shared by all threads or one thread's own.
struct Input {
  Buffer<float> normed;
  ActivationBuffer quantized;
};

// Linear layers' input out of x [rows, k].
struct InputRows {
  const Kernels &kernels;
  Input &to;
  const Wanted &wanted;
  const float *weight;  // of the norm; null: there is none
  float eps;
  int rows, k;

  // Prepares rows [first, last), a tile's at most; row i is x_row(i).
  template <class RowOf>
  void prepare(int first, int last, RowOf x_row) const {
    const float *x[kTileRows];
    for (int row = first; row < last; row++) {
      const float *&at = x[row - first] = x_row(row);
      if (weight) {
        float *normed = to.normed.get() + size_t(row) * k;
        kernels.rms_norm(at, weight, k, eps, normed);
        at = normed;
      }
      to.quantized.quantize(kernels, wanted, at, row, k);
    }
    if (wanted.tiles) to.quantized.tile(kernels, x, first, last - first, rows, k);
  }
};

}  // namespace srt
