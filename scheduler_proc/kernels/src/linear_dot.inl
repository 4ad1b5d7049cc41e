// Linear layers of quantised weights where the level has a dot product of four bytes.
//
// For many rows a pair of channel blocks is first unpacked to one u8 layout (Wide) in scratch memory,
// which takes the nibble arithmetic and half conversions out of the inner loop.
namespace srt::SRT_ISA_NS {

// How far ahead to prefetch, for blocks that are unpacked and for so many rows or more that read them
// packed. One row gains on some processors and loses on others.
constexpr int kRowsThatPrefetch = 2, kBytesAhead = 8192;

// What pairs of channel blocks are unpacked to.
template <class Format>
struct Wide {
  static constexpr int kCode = 512, kScale = 128, kOffset = Format::kOffset;
  static constexpr bool kIsPacked = false, kIsSplit = false;
  SRT_INLINE void quads(const uint8_t *p, int j, B &low, B &high) { Q8::quads(p, j, low, high); }
  SRT_INLINE void scales(const uint8_t *p, F &d, F &m) { Q4K::scales(p, d, m); }
  SRT_INLINE void store_scales(uint8_t *p, F d, F m) {
    store(reinterpret_cast<float *>(p), d);
    store(reinterpret_cast<float *>(p) + 16, m);
  }
  SRT_INLINE void store_packed(uint8_t *, const uint8_t *) {}
};

// dot[r][n] plus the products of block n's group and the codes of row r, `stride` codes apart.
template <class Format, class Code, int R, int N>
SRT_INLINE void add_products(const uint8_t *const (&codes)[N], const Code *x, size_t stride,
                             I (&dot)[R][N]) {
  repeat<4>([&](auto j) {
    B low[N], high[N];
    repeat<N>([&](auto n) { Format::quads(codes[n], j, low[n], high[n]); });
    repeat<R>([&](auto r) {
      const Code *row = x + r * stride;
      repeat<N>([&](auto n) { dot[r][n] = dot4(dot[r][n], low[n], row + 4 * j); });
      repeat<N>([&](auto n) { dot[r][n] = dot4(dot[r][n], high[n], row + 4 * (j + 4)); });
    });
  });
}

// A group's codes and scales, kBytesAhead of these.
template <class Format>
SRT_INLINE void prefetch_group(const uint8_t *codes, const uint8_t *scales) {
  for (int line = 0; line < Format::kCode; line += 64) prefetch(codes + kBytesAhead + line);
  for (int line = 0; line < Format::kScale; line += 64) prefetch(scales + kBytesAhead + line);
}

// The sum of products of half a group.
template <class Code>
SRT_INLINE I half_products(const uint8_t *codes, const Code *x, int half) {
  I dot = izero();
  for (int quad = 4 * half; quad < 4 * half + 4; quad++)
    dot = dot4(dot, load_bytes(codes + 64 * quad), x + 4 * quad);
  return dot;
}

template <class Format, class Code, int R, int N>
SRT_INLINE void add_group(const uint8_t *const (&codes)[N], const Code *x, size_t k,
                          I (&dot)[R][N]) {
  add_products<Format>(codes, x, k, dot);
}

}  // namespace srt::SRT_ISA_NS

#ifdef SRT_SPLIT_CODES
#include "linear_split.inl"
#endif

namespace srt::SRT_ISA_NS {

template <class Format, class Code>
struct Unpacked {
  using Kind = Wide<Format>;
};
#ifdef SRT_SPLIT_CODES
// Not Q8: the scale of a group that is not a number must reach its products.
template <class Code>
struct Unpacked<Q4, Code> {
  using Kind = std::conditional_t<sizeof(Code) == 1, Wide<Q4>, WideSplit<Q4, Code>>;
};
template <class Code>
struct Unpacked<Q4K, Code> : Unpacked<Q4, Code> {};
#else
template <class Code>
struct Unpacked<Q4K, Code> : Unpacked<Q4, Code> {};
#endif

// Accumulated over all groups of k.
template <class Format, class Code>
struct Dots {
  template <int R, int N>
  SRT_INLINE void tile(const uint8_t *const (&w)[N], int k, const Activations &activations,
                       size_t row, F (&acc)[R][N]) {
    const Codes<Code> &x = activations.codes<Code>();
    const int groups = k / kGroup;
    const size_t scales_at = size_t(groups) * Format::kCode;
    for (int g = 0; g < groups; g++) {
      const uint8_t *codes[N], *scales[N];
      repeat<N>([&](auto n) {
        codes[n] = w[n] + size_t(g) * Format::kCode;
        scales[n] = w[n] + scales_at + size_t(g) * Format::kScale;
      });
      if constexpr (Format::kIsPacked && R >= kRowsThatPrefetch)
        repeat<N>([&](auto n) { prefetch_group<Format>(codes[n], scales[n]); });
      I dot[R][N];
      repeat<R>([&](auto r) { repeat<N>([&](auto n) { dot[r][n] = izero(); }); });
      add_group<Format>(codes, x.q + row * k + g * kGroup, k, dot);
      const size_t at = row * groups + g;
      if constexpr (Format::kOffset != 0) subtract_offsets(x, at, groups, dot);
      repeat<N>([&](auto n) {
        F d, m;
        Format::scales(scales[n], d, m);
        repeat<R>([&](auto r) {
          F by;
          if constexpr (Format::kIsSplit)
            by = Format::scaled(scales[n], x.parts[at + size_t(r) * groups]);
          else
            by = mul(d, set1(x.scale[at + size_t(r) * groups]));
          acc[r][n] = fma(to_float(dot[r][n]), by, acc[r][n]);
          if constexpr (Format::kOffset == 0)
            acc[r][n] = fma(m, set1(x.sums[at + size_t(r) * groups]), acc[r][n]);
        });
      });
    }
  }

  // Codes are unsigned, kOffset above the weights'.
  template <int R, int N>
  SRT_INLINE void subtract_offsets(const Codes<Code> &x, size_t at, int groups, I (&dot)[R][N]) {
    repeat<R>([&](auto r) {
      const int32_t *halves = x.halves + 2 * (at + size_t(r) * groups);
      const I offset = iset1(Format::kOffset * (halves[0] + halves[1]));
      repeat<N>([&](auto n) { dot[r][n] = sub(dot[r][n], offset); });
    });
  }
};

// Two scales per group, one for each half of its inputs.
template <class Code>
struct Dots<Q6, Code> {
  template <int R, int N>
  SRT_INLINE void tile(const uint8_t *const (&w)[N], int k, const Activations &activations,
                       size_t row, F (&acc)[R][N]) {
    const Codes<Code> &x = activations.codes<Code>();
    const int groups = k / kGroup;
    const Code *q = x.q + row * k;
    const float *scale = x.scale + row * groups;
    const int32_t *halves = x.halves + row * groups * 2;
    for (int g = 0; g < groups; g++)
      for (int n = 0; n < N; n++) {
        const uint8_t *codes = w[n] + size_t(g) * Q6::kCode;
        const float *d = reinterpret_cast<const float *>(w[n] + size_t(groups) * Q6::kCode +
                                                         size_t(g) * Q6::kScale);
        for (int half = 0; half < 2; half++) {
          const F by = load(d + 16 * half);
          for (int r = 0; r < R; r++) {
            const I dot = half_products(codes, q + size_t(r) * k + g * kGroup, half);
            const I offset = iset1(Q6::kOffset * halves[(size_t(r) * groups + g) * 2 + half]);
            const F both = mul(by, set1(scale[size_t(r) * groups + g]));
            acc[r][n] = fma(to_float(sub(dot, offset)), both, acc[r][n]);
          }
        }
      }
  }
};

template <class Format, class Kind>
static void unpack_block(const uint8_t *from, int k, uint8_t *to) {
  const int groups = k / kGroup;
  const uint8_t *scales = from + size_t(groups) * Format::kCode;
  uint8_t *wide = to + size_t(groups) * Kind::kCode;
  for (int g = 0; g < groups; g++) {
    const uint8_t *codes = from + size_t(g) * Format::kCode;
    prefetch_group<Format>(codes, scales + size_t(g) * Format::kScale);
    for (int j = 0; j < 4; j++) {
      B low, high;
      Format::quads(codes, j, low, high);
      store_bytes(to + size_t(g) * Kind::kCode + 64 * j, low);
      store_bytes(to + size_t(g) * Kind::kCode + 64 * (j + 4), high);
    }
    Kind::store_packed(to + size_t(g) * Kind::kCode, codes);
    F d, m;
    Format::scales(scales + size_t(g) * Format::kScale, d, m);
    Kind::store_scales(wide + size_t(g) * Kind::kScale, d, m);
  }
}

// Bytes are multiplied as fast as the level multiplies. Codes of twelve bits take three products of
// bytes for two inputs of four-bit weights, those of 16 bits four. For weights of more bits both take
// four. Where codes are not split into bytes, all widths take one.
static Width width_of([[maybe_unused]] int32_t format, int32_t bits) {
#ifdef SRT_SPLIT_CODES
  if (bits == 12 && (format == SRT_Q4 || format == SRT_Q4K)) return Width::kTwelve;
#endif
  return bits > 8 ? Width::kWords : Width::kBytes;
}

template <class Format, class Code, int N>
static void quantized_blocks(const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                             int first_row, int last_row, uint8_t *scratch) {
  if constexpr (!std::is_same_v<Format, Q6>) {
    if (last_row - first_row >= kUnpackRows) {
      using Kind = typename Unpacked<Format, Code>::Kind;
      const int k = task.w[0]->k;
      const uint8_t *wide[N];
      for (int n = 0; n < N; n++) {
        uint8_t *to = scratch + n * wide_block_bytes(k);
        unpack_block<Format, Kind>(w[n], k, to);
        wide[n] = to;
      }
      pair_of_blocks<Dots<Kind, Code>>(task, pair, wide, first_row, last_row);
      return;
    }
  }
  pair_of_blocks<Dots<Format, Code>>(task, pair, w, first_row, last_row);
}

}  // namespace srt::SRT_ISA_NS
