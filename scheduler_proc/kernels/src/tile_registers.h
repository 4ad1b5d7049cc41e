// AMX's eight tile registers: how a thread has them configured, and their loads and stores.
//
// The compiler does not see a tile's access to memory. gcc's header leaves out that a load reads
// memory, and that a configuration is longer than a pointer, so stores before them might be moved
// or dropped; and sanitizers instrument neither. The macros here put both right.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SRT_ADDRESS_SANITIZER
#elif __has_feature(thread_sanitizer)
#define SRT_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SRT_ADDRESS_SANITIZER
#elif defined(__SANITIZE_THREAD__)
#define SRT_THREAD_SANITIZER
#endif

#if defined(SRT_ADDRESS_SANITIZER)
extern "C" void *__asan_region_is_poisoned(void *begin, size_t size);
#elif defined(SRT_THREAD_SANITIZER)
extern "C" void __tsan_read_range(void *begin, unsigned long size);
extern "C" void __tsan_write_range(void *begin, unsigned long size);
#endif

// Registers are given as literals: they are part of the instruction.
#define SRT_TILE_LOAD(tile, from, stride)                      \
  do {                                                         \
    srt::amx::note_access<false>(tile, from, stride);          \
    _tile_loadd(tile, from, stride);                           \
  } while (0)
// For data that should not push other data out of the first-level cache.
#define SRT_TILE_LOAD_PASSING(tile, from, stride)              \
  do {                                                         \
    srt::amx::note_access<false>(tile, from, stride);          \
    _tile_stream_loadd(tile, from, stride);                    \
  } while (0)
#define SRT_TILE_STORE(tile, to, stride)                       \
  do {                                                         \
    srt::amx::note_access<true>(tile, to, stride);             \
    _tile_stored(tile, to, stride);                            \
  } while (0)

namespace srt::amx {

constexpr int kTileBytes = 1024;

struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct TileState {
  int configured = 0;  // the number of this thread's configuration; 0: none
  Configuration as;
};

static thread_local TileState tile_state;

// Report to the compiler and sanitizers the rows that a load or store of register `tile` touches.
template <bool kIsStore>
SRT_INLINE void note_access([[maybe_unused]] int tile, [[maybe_unused]] const void *at,
                            [[maybe_unused]] ptrdiff_t stride) {
#if defined(SRT_ADDRESS_SANITIZER) || defined(SRT_THREAD_SANITIZER)
  const Configuration &as = tile_state.as;
  for (int row = 0; row < as.rows[tile]; row++) {
    char *begin = const_cast<char *>(static_cast<const char *>(at)) + row * stride;
#if defined(SRT_ADDRESS_SANITIZER)
    // Reading a poisoned byte makes the sanitizer report it.
    if (void *bad = __asan_region_is_poisoned(begin, as.row_bytes[tile]))
      static_cast<void>(*static_cast<volatile char *>(bad));
#else
    (kIsStore ? __tsan_write_range : __tsan_read_range)(begin, as.row_bytes[tile]);
#endif
  }
#endif
  asm volatile("" ::: "memory");
}

static void configure(int number, const Configuration &to) {
  if (number == tile_state.configured) return;
  tile_state.configured = number;
  tile_state.as = to;
  asm volatile("" ::"r"(&tile_state.as) : "memory");
  _tile_loadconfig(&tile_state.as);
}

// For linear layers over rows in tiles of `columns`; with 16, for products of whole tiles.
// 0 to 3: products of two channel blocks and two row tiles; 4, 5: weights; 6, 7: activations.
static void configure(int columns) {
  Configuration to;
  for (int t = 0; t < 8; t++) {
    to.rows[t] = 16;
    to.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? 64 : 4 * columns);
  }
  configure(columns, to);
}

// For attention of one token's `heads`. 0, 1: products of keys; 2, 3: those of values; 4, 5: keys
// or values; 6: queries; 7: weights. 2, 3 and 7 have a row for each head: a product of fewer rows
// takes less time.
static void configure_for_token(int heads) {
  Configuration to;
  for (int t = 0; t < 8; t++) {
    to.rows[t] = static_cast<uint8_t>(t == 2 || t == 3 || t == 7 ? heads : 16);
    to.row_bytes[t] = 64;
  }
  configure(-heads, to);
}

static void release() {
  if (tile_state.configured) _tile_release();
  tile_state.configured = 0;
}

// Products of N by T tiles, in registers from 0 on.
template <int N, int T>
SRT_INLINE void clear_products() {
  _tile_zero(0);
  if constexpr (N == 2) _tile_zero(1);
  if constexpr (T == 2) _tile_zero(2);
  if constexpr (N * T == 4) _tile_zero(3);
}

}  // namespace srt::amx
