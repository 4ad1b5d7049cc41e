// Linear layers: y = x @ w.T over packed channel blocks, for every weight format.
//
// A unit of work is a range of channel-block pairs times a range of rows. Each output is one chain
// of float additions over the groups of k, in order, whatever the tile: so a row's result does not
// depend on how many rows there are. Quantised weights are multiplied in linear_dot.inl, or in
// linear_words.inl where the level has no dot product of four bytes, with activations that are codes of
// eight or of 16 bits (Code).
#include <type_traits>

#include "formats.h"
#include "kernels.h"
#include "linear_output.inl"

namespace srt::SRT_ISA_NS {

// ---- how a format's group of 32 inputs x 16 channels is read ------------------------------------

// Weights are scale * (code - kOffset), or scale * code + offset of the file's where kOffset is 0.
struct Packed {
  static constexpr bool kIsPacked = true, kIsSplit = false;
};

struct Q4 : Packed {
  static constexpr int kCode = sizes_of(SRT_Q4).code_bytes, kScale = sizes_of(SRT_Q4).scale_bytes;
  static constexpr int kOffset = 0, kPacked = 0;
  SRT_INLINE void quads(const uint8_t *p, int j, B &low, B &high) {
    const B both = load_bytes(p + 64 * j);
    low = low_nibbles(both);
    high = high_nibbles(both);
  }
  SRT_INLINE void scales(const uint8_t *p, F &d, F &m) {
    d = load(reinterpret_cast<const f16 *>(p));
    m = load(reinterpret_cast<const f16 *>(p) + 16);
  }
};

struct Q4K : Q4 {
  static constexpr int kScale = sizes_of(SRT_Q4K).scale_bytes;
  SRT_INLINE void scales(const uint8_t *p, F &d, F &m) {
    d = load(reinterpret_cast<const float *>(p));
    m = load(reinterpret_cast<const float *>(p) + 16);
  }
};

struct Q8 : Packed {
  static constexpr int kCode = sizes_of(SRT_Q8).code_bytes, kScale = sizes_of(SRT_Q8).scale_bytes;
  static constexpr int kOffset = 128;
  SRT_INLINE void quads(const uint8_t *p, int j, B &low, B &high) {
    low = load_bytes(p + 64 * j);
    high = load_bytes(p + 64 * (j + 4));
  }
  SRT_INLINE void scales(const uint8_t *p, F &d, F &m) {
    d = load(reinterpret_cast<const f16 *>(p));
    m = zero();
  }
};

struct Q6 : Packed {
  static constexpr int kCode = sizes_of(SRT_Q6).code_bytes, kScale = sizes_of(SRT_Q6).scale_bytes;
  static constexpr int kOffset = 32;
};

// ---- tiles of R rows x N channel blocks ---------------------------------------------------------

template <class T>
struct Floats {
  template <int R, int N>
  SRT_INLINE void tile(const uint8_t *const (&w)[N], int k, const Activations &x, size_t row,
                       F (&acc)[R][N]) {
    const float *rows = x.x + row * k;
    for (int i = 0; i < k; i++) {
      F column[N];
      repeat<N>([&](auto n) {
        column[n] = load(reinterpret_cast<const T *>(w[n]) + size_t(i) * 16);
      });
      repeat<R>([&](auto r) {
        const F at = set1(rows[size_t(r) * k + i]);
        repeat<N>([&](auto n) { acc[r][n] = fma(at, column[n], acc[r][n]); });
      });
    }
  }
};

// Rows [row, row + R) of one pair, or of a single last block (N == 1).
template <class Kind, int R, int N>
SRT_FLATTEN void rows_of_pair(const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                         size_t row) {
  F acc[R][N];
  repeat<R>([&](auto r) { repeat<N>([&](auto n) { acc[r][n] = zero(); }); });
  Kind::tile(w, task.w[0]->k, task.x, row, acc);
  add_bias(task, pair, acc);
  write_tile(task, pair, row, acc);
}

// A tile of `size` <= R rows.
template <class Kind, int R, int N>
static void tile_of(int size, const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                    size_t row) {
  if (size == R)
    rows_of_pair<Kind, R>(task, pair, w, row);
  else if constexpr (R > 1)
    tile_of<Kind, R - 1>(size, task, pair, w, row);
}

// All rows, in tiles as equal as possible.
template <class Kind, int N>
static void pair_of_blocks(const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                           int first_row, int last_row) {
  const int tiles = (last_row - first_row + kGemmRows - 1) / kGemmRows;
  for (int t = 0, row = first_row; t < tiles; t++) {
    const int size = (last_row - row + tiles - t - 1) / (tiles - t);
    tile_of<Kind, kGemmRows>(size, task, pair, w, row);
    row += size;
  }
}

}  // namespace srt::SRT_ISA_NS

#ifdef SRT_WORD_SUMS
#include "linear_words.inl"
#else
#include "linear_dot.inl"
#endif

namespace srt::SRT_ISA_NS {

// For gate and up projections of different formats.
static void silu_mul(float *gate, const float *up, int k) {
  for (int i = 0; i < k; i += 16) store(gate + i, mul(silu(load(gate + i)), load(up + i)));
}

// ---- units --------------------------------------------------------------------------------------

template <class Format, int N>
static void blocks_over_rows(const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                             int first_row, int last_row, uint8_t *scratch) {
  if constexpr (std::is_same_v<Format, float> || std::is_same_v<Format, f16> ||
                std::is_same_v<Format, bf16>)
    pair_of_blocks<Floats<Format>>(task, pair, w, first_row, last_row);
  else if (task.width == Width::kWords)
    quantized_blocks<Format, int16_t>(task, pair, w, first_row, last_row, scratch);
  else if (task.width == Width::kBytes)
    quantized_blocks<Format, int8_t>(task, pair, w, first_row, last_row, scratch);
#ifdef SRT_SPLIT_CODES
  else if constexpr (Format::kOffset == 0)
    quantized_blocks<Format, Int12>(task, pair, w, first_row, last_row, scratch);
#endif
}

template <class Format>
static void unit(const LinearTask &task, int pair, int first_row, int last_row, uint8_t *scratch) {
  const srt_matrix &a = *task.w[0];
  const size_t bytes = channel_block_bytes(a.format, a.k);
  const auto *base = static_cast<const uint8_t *>(a.data);
  if (task.output == Output::kSiluMul) {
    const auto *up = static_cast<const uint8_t *>(task.w[1]->data);
    const uint8_t *const w[2] = {base + pair * bytes, up + pair * bytes};
    blocks_over_rows<Format>(task, pair, w, first_row, last_row, scratch);
  } else if (pair * 2 + 1 < blocks_of(a.n)) {
    const uint8_t *const w[2] = {base + pair * 2 * bytes, base + (pair * 2 + 1) * bytes};
    blocks_over_rows<Format>(task, pair, w, first_row, last_row, scratch);
  } else {
    const uint8_t *const w[1] = {base + pair * 2 * bytes};
    blocks_over_rows<Format>(task, pair, w, first_row, last_row, scratch);
  }
}

// Channel-block pairs [first, last) of the task, over rows [first_row, last_row).
static void linear(const LinearTask &task, int first, int last, int first_row, int last_row,
                   uint8_t *scratch) {
  for (int pair = first; pair < last; pair++) switch (task.w[0]->format) {
      case SRT_F32: unit<float>(task, pair, first_row, last_row, scratch); break;
      case SRT_F16: unit<f16>(task, pair, first_row, last_row, scratch); break;
      case SRT_BF16: unit<bf16>(task, pair, first_row, last_row, scratch); break;
      case SRT_Q4: unit<Q4>(task, pair, first_row, last_row, scratch); break;
      case SRT_Q4K: unit<Q4K>(task, pair, first_row, last_row, scratch); break;
      case SRT_Q8: unit<Q8>(task, pair, first_row, last_row, scratch); break;
      case SRT_Q6: unit<Q6>(task, pair, first_row, last_row, scratch); break;
    }
}

}  // namespace srt::SRT_ISA_NS
