// A pool of threads that run one job together, phase by phase.
//
// The caller is thread 0. A phase's work is handed out in pieces through a counter, and the phase
// is over when all its pieces are done, not when all threads have taken part: on a machine whose
// cores are shared with other processes a thread may be away for longer than a phase takes. The
// others do its share meanwhile, and it goes on from whatever phase they have reached. No thread
// waits for one that holds no piece. Waiting threads spin for a while and then yield: a step has
// hundreds of phases of a few microseconds.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace srt {

class ThreadPool {
  struct Phase {
    std::atomic<int> next{0};  // piece to hand out
    std::atomic<int> done{0};  // pieces
    std::atomic<int> count{0};  // pieces, if they are announced
  };

 public:
  // One thread's way through a job. All threads of a job call `share` in the same order with the
  // same counts.
  class Member {
   public:
    int thread() const { return thread_; }
    int size() const { return pool_.size_; }

    // The next phase: calls piece(i) for the i < count that this thread gets, then waits for the
    // others'. `prepare` is called before this thread's first piece, if it gets one.
    template <class Prepare, class Piece>
    void share(int count, Prepare prepare, Piece piece) {
      Phase &phase = pool_.phases_[phase_++];
      bool prepared = false;
      for (int i; (i = phase.next.fetch_add(1, std::memory_order_relaxed)) < count;) {
        if (!prepared) prepare();
        prepared = true;
        piece(i);
        phase.done.fetch_add(1, std::memory_order_release);
      }
      spin_while([&] { return phase.done.load(std::memory_order_acquire) < count; });
    }

    template <class Piece>
    void share(int count, Piece piece) {
      share(count, [] {}, piece);
    }

    // From a piece: the phase after the next `skipped` ones has `count` pieces. What depends on
    // computed values cannot be counted by each thread: one that was away may find the values of a
    // later phase.
    void announce(int skipped, int count) {
      pool_.phases_[phase_ + skipped].count.store(count, std::memory_order_relaxed);
    }
    // The next phase, with as many pieces as were announced in one before it.
    template <class Piece>
    void share_announced(Piece piece) {
      share(pool_.phases_[phase_].count.load(std::memory_order_relaxed), piece);
    }

   private:
    friend class ThreadPool;
    Member(ThreadPool &pool, int thread) : pool_(pool), thread_(thread) {}
    ThreadPool &pool_;
    const int thread_;
    int phase_ = 0;
  };

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int size() const { return size_; }

  // Run body(member) on every thread that joins in time; returns when all phases (at most
  // `max_phases`) are over and no thread is in the body any more.
  template <class Body>
  void run(Body &body, int max_phases) {
    run([](void *at, Member &member) { (*static_cast<Body *>(at))(member); }, &body, max_phases);
  }

 private:
  using Body = void (*)(void *, Member &);
  static constexpr int kSpins = 1000;      // some tens of us: then others may need the core more
  static constexpr int kIdleSpins = 6000;  // before a thread without work goes to sleep

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  template <class Condition>
  static void spin_while(Condition waiting) {
    for (int spins = 0; waiting(); spins++) spins < kSpins ? pause() : std::this_thread::yield();
  }

  void run(Body body, void *argument, int max_phases);
  void work(int thread);

  const int size_;
  Body body_ = nullptr;
  void *argument_ = nullptr;
  bool stopping_ = false;
  std::unique_ptr<Phase[]> phases_;
  int num_phases_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<uint64_t> jobs_{0};   // started so far
  alignas(64) std::atomic<bool> open_{false};   // whether a thread may join the present job
  alignas(64) std::atomic<int> joined_{0};      // threads, besides the caller, that may be in it
};

}  // namespace srt
