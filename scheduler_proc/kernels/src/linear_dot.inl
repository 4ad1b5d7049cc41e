// Linear layers of quantised weights where the level has a dot product of four bytes.
//
// For many rows a pair of channel blocks is first unpacked to one u8 layout (Wide) in scratch memory,
// which takes the nibble arithmetic and half conversions out of the inner loop.
namespace srt::SRT_ISA_NS {

// What pairs of channel blocks are unpacked to.
struct Wide {
  static constexpr int kCode = 512, kScale = 128;
  SRT_INLINE void quads(const uint8_t *p, int j, B &low, B &high) { Q8::quads(p, j, low, high); }
  SRT_INLINE void scales(const uint8_t *p, F &d, F &m) { Q4K::scales(p, d, m); }
};

// Accumulated over all groups of k.
template <class Format>
struct Dots {
  template <int R, int N>
  SRT_INLINE void tile(const uint8_t *const (&w)[N], int k, const Activations &x, size_t row,
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
};

// Two scales per group, one for each half of its inputs; codes are offset by 32.
template <>
struct Dots<Q6> {
  template <int R, int N>
  SRT_INLINE void tile(const uint8_t *const (&w)[N], int k, const Activations &x, size_t row,
                       F (&acc)[R][N]) {
    const int groups = k / kGroup;
    const int8_t *q = x.q + row * k;
    const float *scale = x.scale + row * groups, *halves = x.halves + row * groups * 2;
    for (int g = 0; g < groups; g++)
      for (int n = 0; n < N; n++) {
        const uint8_t *codes = w[n] + size_t(g) * Q6::kCode;
        const float *d = reinterpret_cast<const float *>(w[n] + size_t(groups) * Q6::kCode +
                                                         size_t(g) * Q6::kScale);
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
};

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
static void quantized_blocks(const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                             int first_row, int last_row, uint8_t *scratch) {
  if constexpr (!std::is_same_v<Format, Q6>) {
    if (last_row - first_row >= kUnpackRows) {
      const int k = task.w[0]->k;
      const uint8_t *wide[N];
      for (int n = 0; n < N; n++) {
        uint8_t *to = scratch + n * wide_block_bytes(k);
        unpack_block<Format>(w[n], k, to);
        wide[n] = to;
      }
      pair_of_blocks<Dots<Wide>>(task, pair, wide, first_row, last_row);
      return;
    }
  }
  pair_of_blocks<Dots<Format>>(task, pair, w, first_row, last_row);
}

}  // namespace srt::SRT_ISA_NS
