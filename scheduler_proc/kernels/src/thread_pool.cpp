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

void ThreadPool::run(Body body, void *argument) {
  next_.store(0, std::memory_order_relaxed);
  if (size_ > 1) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      body_ = body;
      argument_ = argument;
      done_.store(0, std::memory_order_relaxed);
      jobs_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
  }
  body(argument, 0);
  spin_while([this] { return done_.load(std::memory_order_acquire) < size_ - 1; });
}

void ThreadPool::work(int thread) {
  for (uint64_t seen = 0;; seen++) {
    const auto idle = [&] { return jobs_.load(std::memory_order_acquire) == seen; };
    for (int spins = 0; spins < kIdleSpins && idle(); spins++) pause();
    if (idle()) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return !idle(); });
    }
    if (stopping_) return;
    body_(argument_, thread);
    done_.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace srt
