// Cuts linear layers into pieces for the threads of a pool: enough for every thread to get several,
// but none so small that handing it out takes longer than computing it.
#pragma once
#include "kernels.h"
#include "thread_pool.h"

namespace srt {

constexpr int kPiecesPerThread = 6;

// Cuts tasks, each over its own rows, by panels of rows and by channels; returns how many pieces
// they have together.
int plan_pieces(LinearTask *tasks, int num_tasks, int threads);

// Pairs of channel blocks that a task has, which `linear` takes ranges of.
int pairs_of(const LinearTask &task);

// Does one piece of planned tasks. `scratch` is the thread's own.
void run_piece(const Kernels &kernels, const LinearTask *tasks, int num_tasks, int piece,
               uint8_t *scratch);

// Runs the tasks as one phase; `prepare` as in Member::share.
template <class Prepare>
void linear_phase(ThreadPool::Member &member, const Kernels &kernels, LinearTask *tasks,
                  int num_tasks, uint8_t *scratch, Prepare prepare) {
  member.share(plan_pieces(tasks, num_tasks, member.size()), prepare,
               [&](int piece) { run_piece(kernels, tasks, num_tasks, piece, scratch); });
}

}  // namespace srt
