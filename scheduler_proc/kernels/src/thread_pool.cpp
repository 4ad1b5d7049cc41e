// Starting, waking and ending the threads.
#include "thread_pool.h"

namespace srt {

ThreadPool::ThreadPool(int threads) : size_(threads) {
  for (int thread = 1; thread < threads; thread++)
    threads_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    jobs_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread &thread : threads_) thread.join();
}

// No thread is in a job when it begins, so the phases can be reset.
void ThreadPool::run(Body body, void *argument, int max_phases) {
  if (max_phases > num_phases_) {
    phases_ = std::make_unique<Phase[]>(max_phases);
    num_phases_ = max_phases;
  }
  for (int i = 0; i < max_phases; i++) {
    phases_[i].next.store(0, std::memory_order_relaxed);
    phases_[i].done.store(0, std::memory_order_relaxed);
  }
  body_ = body;
  argument_ = argument;
  if (size_ > 1) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_.store(true);
      jobs_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
  }
  Member caller(*this, 0);
  body(argument, caller);
  // A thread may join at this moment. Whichever of both acts second sees what the other did: either
  // that thread finds the job closed, or this one finds it in the job.
  open_.store(false);
  spin_while([this] { return joined_.load() > 0; });
}

void ThreadPool::work(int thread) {
  for (uint64_t seen = 0;;) {
    const auto idle = [&] { return jobs_.load(std::memory_order_acquire) == seen; };
    for (int spins = 0; spins < kIdleSpins && idle(); spins++) pause();
    if (idle()) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return !idle(); });
    }
    seen = jobs_.load(std::memory_order_acquire);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
    }
    joined_.fetch_add(1);
    if (open_.load()) {
      Member member(*this, thread);
      body_(argument_, member);
    }
    joined_.fetch_sub(1);
  }
}

}  // namespace srt
