// Linear layers: y = x @ w.T over packed channel blocks, for every weight format.
//
// A unit of work is a range of channel-block pairs times a range of rows. Each output is one chain
// of float additions over the groups of k, in order, whatever the tile: so a row's result does not
// depend on how many rows there are. For many rows a pair is first unpacked to one u8 layout (Wide)
// in scratch memory, which takes the nibble arithmetic and half conversions out of the inner loop.
#include <type_traits>

#include "formats.h"
#include "kernels.h"
#include "linear_output.inl"

namespace srt::SRT_ISA_NS {

// ---- how a format's group of 32 inputs x 16 channels is read ------------------------------------

struct Q4 {
  static constexpr int kCode = sizes_of(SRT_Q4).code_bytes, kScale = sizes_of(SRT_Q4).scale_bytes;
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

struct Q8 {
  static constexpr int kCode = sizes_of(SRT_Q8).code_bytes, kScale = sizes_of(SRT_Q8).scale_bytes;
  SRT_INLINE void quads(const uint8_t *p, int j, B &low, B &high) {
    low = load_bytes(p + 64 * j);
    high = load_bytes(p + 64 * (j + 4));
  }
  SRT_INLINE void scales(const uint8_t *p, F &d, F &m) {  // codes are offset by 128
    d = load(reinterpret_cast<const f16 *>(p));
    m = mul(d, set1(-128.f));
  }
};

// What pairs of channel blocks are unpacked to.
struct Wide {
  static constexpr int kCode = 512, kScale = 128;
  SRT_INLINE void quads(const uint8_t *p, int j, B &low, B &high) { Q8::quads(p, j, low, high); }
  SRT_INLINE void scales(const uint8_t *p, F &d, F &m) { Q4K::scales(p, d, m); }
};

// ---- tiles --------------------------------------------------------------------------------------

// R rows x N channel blocks, accumulated over all groups of k.
template <class Format, int R, int N>
SRT_INLINE void quantized_tile(const uint8_t *const (&w)[N], int k, const Activations &x, size_t row,
                               F (&acc)[R][N]) {
  const int groups = k / kGroup;
  const int8_t *q = x.q + row * k;
  const float *scale = x.scale + row * groups, *sums = x.sums + row * groups;
  const size_t scales_at = size_t(groups) * Format::kCode;
  for (int g = 0; g < groups; g++) {
    I dot[R][N];
    repeat<R>([&](auto r) { repeat<N>([&](auto n) { dot[r][n] = izero(); }); });
    repeat<4>([&](auto j) {
      B low[N], high[N];
      repeat<N>([&](auto n) {
        Format::quads(w[n] + size_t(g) * Format::kCode, j, low[n], high[n]);
      });
      repeat<R>([&](auto r) {
        const int8_t *quad = q + size_t(r) * k + g * kGroup + 4 * j;
        repeat<N>([&](auto n) { dot[r][n] = dot4(dot[r][n], low[n], quad); });
        repeat<N>([&](auto n) { dot[r][n] = dot4(dot[r][n], high[n], quad + 16); });
      });
    });
    repeat<N>([&](auto n) {
      F d, m;
      Format::scales(w[n] + scales_at + size_t(g) * Format::kScale, d, m);
      repeat<R>([&](auto r) {
        const F by = mul(d, set1(scale[size_t(r) * groups + g]));
        acc[r][n] = fma(to_float(dot[r][n]), by, acc[r][n]);
        acc[r][n] = fma(m, set1(sums[size_t(r) * groups + g]), acc[r][n]);
      });
    });
  }
}

// SRT_Q6: two scales per group, one for each half of its inputs; codes are offset by 32.
template <int R, int N>
SRT_INLINE void q6_tile(const uint8_t *const (&w)[N], int k, const Activations &x, size_t row,
                        F (&acc)[R][N]) {
  constexpr FormatSizes kSizes = sizes_of(SRT_Q6);
  const int groups = k / kGroup;
  const int8_t *q = x.q + row * k;
  const float *scale = x.scale + row * groups, *halves = x.halves + row * groups * 2;
  for (int g = 0; g < groups; g++)
    for (int n = 0; n < N; n++) {
      const uint8_t *codes = w[n] + size_t(g) * kSizes.code_bytes;
      const float *d = reinterpret_cast<const float *>(w[n] + size_t(groups) * kSizes.code_bytes +
                                                       size_t(g) * kSizes.scale_bytes);
      for (int half = 0; half < 2; half++) {
        const F by = load(d + 16 * half), offset = mul(by, set1(-32.f));
        for (int r = 0; r < R; r++) {
          I dot = izero();
          for (int j = 0; j < 4; j++)
            dot = dot4(dot, load_bytes(codes + 256 * half + 64 * j),
                       q + size_t(r) * k + g * kGroup + 16 * half + 4 * j);
          const F both = mul(by, set1(scale[size_t(r) * groups + g]));
          acc[r][n] = fma(to_float(dot), both, acc[r][n]);
          acc[r][n] = fma(offset, set1(halves[(size_t(r) * groups + g) * 2 + half]), acc[r][n]);
        }
      }
    }
}

template <class T, int R, int N>
SRT_INLINE void float_tile(const uint8_t *const (&w)[N], int k, const Activations &x, size_t row,
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

struct Q6 {};

template <class Format, int R, int N>
SRT_INLINE void tile(const uint8_t *const (&w)[N], int k, const Activations &x, size_t row,
                     F (&acc)[R][N]) {
  repeat<R>([&](auto r) { repeat<N>([&](auto n) { acc[r][n] = zero(); }); });
  if constexpr (std::is_same_v<Format, float> || std::is_same_v<Format, f16> ||
                std::is_same_v<Format, bf16>)
    float_tile<Format>(w, k, x, row, acc);
  else if constexpr (std::is_same_v<Format, Q6>)
    q6_tile(w, k, x, row, acc);
  else
    quantized_tile<Format>(w, k, x, row, acc);
}

// For a gate and an up that could not be computed together.
static void silu_mul(float *gate, const float *up, int k) {
  for (int i = 0; i < k; i += 16) store(gate + i, mul(silu(load(gate + i)), load(up + i)));
}

// Rows [row, row + R) of one pair, or of a single last block (N == 1).
template <class Format, int R, int N>
SRT_FLATTEN void rows_of_pair(const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                         size_t row) {
  F acc[R][N];
  tile<Format>(w, task.w[0]->k, task.x, row, acc);
  add_bias(task, pair, acc);
  write_tile(task, pair, row, acc);
}

// A tile of `size` <= R rows.
template <class Format, int R, int N>
static void tile_of(int size, const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                    size_t row) {
  if (size == R)
    rows_of_pair<Format, R>(task, pair, w, row);
  else if constexpr (R > 1)
    tile_of<Format, R - 1>(size, task, pair, w, row);
}

// All rows, in tiles as equal as can be.
template <class Format, int N>
static void pair_of_blocks(const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                           int first_row, int last_row) {
  const int tiles = (last_row - first_row + kGemmRows - 1) / kGemmRows;
  for (int t = 0, row = first_row; t < tiles; t++) {
    const int size = (last_row - row + tiles - t - 1) / (tiles - t);
    tile_of<Format, kGemmRows>(size, task, pair, w, row);
    row += size;
  }
}

// ---- units --------------------------------------------------------------------------------------

template <class Format>
static void unpack_block(const uint8_t *from, int k, uint8_t *to) {
  const int groups = k / kGroup;
  const uint8_t *scales = from + size_t(groups) * Format::kCode;
  float *wide = reinterpret_cast<float *>(to + size_t(groups) * Wide::kCode);
  for (int g = 0; g < groups; g++) {
    for (int j = 0; j < 4; j++) {
      B low, high;
      Format::quads(from + size_t(g) * Format::kCode, j, low, high);
      store_bytes(to + size_t(g) * Wide::kCode + 64 * j, low);
      store_bytes(to + size_t(g) * Wide::kCode + 64 * (j + 4), high);
    }
    F d, m;
    Format::scales(scales + size_t(g) * Format::kScale, d, m);
    store(wide + g * 32, d);
    store(wide + g * 32 + 16, m);
  }
}

template <class Format, int N>
static void blocks_over_rows(const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                             int first_row, int last_row, uint8_t *scratch) {
  if constexpr (std::is_base_of_v<Q4, Format> || std::is_same_v<Format, Q8>) {
    if (last_row - first_row >= kUnpackRows) {
      const int k = task.w[0]->k;
      const uint8_t *wide[N];
      for (int n = 0; n < N; n++) {
        uint8_t *to = scratch + n * wide_block_bytes(k);
        unpack_block<Format>(w[n], k, to);
        wide[n] = to;
      }
      pair_of_blocks<Wide>(task, pair, wide, first_row, last_row);
      return;
    }
  }
  pair_of_blocks<Format>(task, pair, w, first_row, last_row);
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
