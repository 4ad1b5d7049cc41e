// A pool of threads that run one function together, phase by phase, with barriers in between.
//
// The caller is thread 0. Work within a phase is handed out in pieces through a shared counter, so
// that a core that was taken away for a moment costs one piece and not a share of the phase. Waiting
// threads spin for a while and then yield: a step has hundreds of barriers a few microseconds apart.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace srt {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int size() const { return size_; }

  // Run body(thread) on every thread; returns when all have returned.
  template <class Body>
  void run(Body &body) {
    run([](void *at, int thread) { (*static_cast<Body *>(at))(thread); }, &body);
  }

  // Wait until every thread is here; the piece counter starts again at 0.
  void barrier() {
    if (size_ == 1) {
      next_.store(0, std::memory_order_relaxed);
      return;
    }
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
    } else {
      spin_while([&] { return phase_.load(std::memory_order_acquire) == phase; });
    }
  }

  // The next piece of the present phase: 0, 1, 2, ... each to one thread.
  int next() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // All pieces below `count`, then the barrier.
  template <class Piece>
  void share(int count, Piece piece) {
    for (int i; (i = next()) < count;) piece(i);
    barrier();
  }

 private:
  using Body = void (*)(void *, int);
  static constexpr int kSpins = 2000;      // some 30 us: then others may need the core more
  static constexpr int kIdleSpins = 4000;  // before a thread without work goes to sleep

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  template <class Condition>
  static void spin_while(Condition waiting) {
    for (int spins = 0; waiting(); spins++) spins < kSpins ? pause() : std::this_thread::yield();
  }

  void run(Body body, void *argument);
  void work(int thread);

  const int size_;
  Body body_ = nullptr;
  void *argument_ = nullptr;
  bool stopping_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
  // On cache lines of their own: every thread writes some of these all the time.
  alignas(64) std::atomic<uint64_t> jobs_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> next_{0};
};

}  // namespace srt
