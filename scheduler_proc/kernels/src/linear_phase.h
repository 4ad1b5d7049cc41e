// Cuts linear layers into pieces for the threads of a pool: enough for every thread to get several,
// but none so small that handing it out takes longer than computing it.
#pragma once
#include "kernels.h"
#include "thread_pool.h"

namespace srt {

constexpr int kMaxTasks = 3;  // of one phase: q, k and v

// Up to kMaxTasks tasks over the same rows.
class LinearPieces {
 public:
  LinearPieces(const LinearTask *tasks, int num_tasks, int rows, int threads);
  int count() const { return panels_ * per_panel_; }
  // Do one piece. `scratch` is the thread's own.
  void run(const Kernels &kernels, int piece, uint8_t *scratch) const;

 private:
  const LinearTask *tasks_;
  int rows_, panels_, step_;
  int pieces_[kMaxTasks];  // of each task, for one panel of rows
  int per_panel_ = 0;
};

// Runs the tasks as one phase; `prepare` as in Member::share.
template <class Prepare>
void linear_phase(ThreadPool::Member &member, const Kernels &kernels, const LinearTask *tasks,
                  int num_tasks, int rows, uint8_t *scratch, Prepare prepare) {
  const LinearPieces pieces(tasks, num_tasks, rows, member.size());
  member.share(pieces.count(), prepare,
               [&](int piece) { pieces.run(kernels, piece, scratch); });
}

}  // namespace srt
