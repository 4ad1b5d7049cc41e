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

// Exact sums of products with codes of activations; `total` turns each into one number.
template <class Code>
struct DotSum {
  using Type = I;
  SRT_INLINE I zero() { return izero(); }
};
template <>
struct DotSum<int16_t> {
  using Type = WideSum;
  SRT_INLINE WideSum zero() { return wide_zero(); }
};

// acc plus the products of w and quad `quad` of the group.
SRT_INLINE I dot_quad(I acc, B w, const int8_t *group, int quad) {
  return dot4(acc, w, group + 4 * quad);
}
SRT_INLINE WideSum dot_quad(WideSum acc, B w, const int16_t *group, int quad) {
  return dot4(acc, w, group, quad);
}
SRT_INLINE I total(I sum) { return sum; }

// Accumulated over all groups of k.
template <class Format, class Code>
struct Dots {
  template <int R, int N>
  SRT_INLINE void tile(const uint8_t *const (&w)[N], int k, const Activations &activations,
                       size_t row, F (&acc)[R][N]) {
    const Codes<Code> &x = activations.codes<Code>();
    const int groups = k / kGroup;
    const Code *q = x.q + row * k;
    const float *scale = x.scale + row * groups, *sums = x.sums + row * groups;
    const size_t scales_at = size_t(groups) * Format::kCode;
    for (int g = 0; g < groups; g++) {
      typename DotSum<Code>::Type dot[R][N];
      repeat<R>([&](auto r) { repeat<N>([&](auto n) { dot[r][n] = DotSum<Code>::zero(); }); });
      repeat<4>([&](auto j) {
        B low[N], high[N];
        repeat<N>([&](auto n) {
          Format::quads(w[n] + size_t(g) * Format::kCode, j, low[n], high[n]);
        });
        repeat<R>([&](auto r) {
          const Code *group = q + size_t(r) * k + g * kGroup;
          repeat<N>([&](auto n) { dot[r][n] = dot_quad(dot[r][n], low[n], group, j); });
          repeat<N>([&](auto n) { dot[r][n] = dot_quad(dot[r][n], high[n], group, j + 4); });
        });
      });
      repeat<N>([&](auto n) {
        F d, m;
        Format::scales(w[n] + scales_at + size_t(g) * Format::kScale, d, m);
        repeat<R>([&](auto r) {
          const F by = mul(d, set1(scale[size_t(r) * groups + g]));
          acc[r][n] = fma(to_float(total(dot[r][n])), by, acc[r][n]);
          acc[r][n] = fma(m, set1(sums[size_t(r) * groups + g]), acc[r][n]);
        });
      });
    }
  }
};

// Two scales per group, one for each half of its inputs; codes are offset by 32.
template <class Code>
struct Dots<Q6, Code> {
  template <int R, int N>
  SRT_INLINE void tile(const uint8_t *const (&w)[N], int k, const Activations &activations,
                       size_t row, F (&acc)[R][N]) {
    const Codes<Code> &x = activations.codes<Code>();
    const int groups = k / kGroup;
    const Code *q = x.q + row * k;
    const float *scale = x.scale + row * groups, *halves = x.halves + row * groups * 2;
    for (int g = 0; g < groups; g++)
      for (int n = 0; n < N; n++) {
        const uint8_t *codes = w[n] + size_t(g) * Q6::kCode;
        const float *d = reinterpret_cast<const float *>(w[n] + size_t(groups) * Q6::kCode +
                                                         size_t(g) * Q6::kScale);
        for (int half = 0; half < 2; half++) {
          const F by = load(d + 16 * half), offset = mul(by, set1(-32.f));
          for (int r = 0; r < R; r++) {
            auto dot = DotSum<Code>::zero();
            for (int quad = 4 * half; quad < 4 * half + 4; quad++)
              dot = dot_quad(dot, load_bytes(codes + 64 * quad), q + size_t(r) * k + g * kGroup,
                             quad);
            const F both = mul(by, set1(scale[size_t(r) * groups + g]));
            acc[r][n] = fma(to_float(total(dot)), both, acc[r][n]);
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

// Activations of 16 bits take two products of bytes instead of one.
static bool prefers_words(int32_t) { return false; }

template <class Format, class Code, int N>
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
      pair_of_blocks<Dots<Wide, Code>>(task, pair, wide, first_row, last_row);
      return;
    }
  }
  pair_of_blocks<Dots<Format, Code>>(task, pair, w, first_row, last_row);
}

}  // namespace srt::SRT_ISA_NS
