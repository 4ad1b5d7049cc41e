// Linear layers of quantised weights where the processor multiplies bytes into sums of 16 bits only.
//
// Those sums are exact as long as the codes are small: over a group's 32 inputs for codes of four
// bits, 8 * 2 * 15 * 127 < 2^15; over eight inputs for codes of six bits, 2 * 2 * 63 * 127 < 2^15.
// Codes of eight bits are two of four. Activations of 16 bits are multiplied as words, in sums of 32
// bits: 32 * 255 * 127 * 256 < 2^31. So a group's dot products are the integers that linear_dot.inl
// computes, and the float arithmetic is the same.
//
// A group is unpacked once for up to kBlockRows rows, whose sums stay in memory from group to
// group: the registers are needed for the sums of 16 bits.
#include <algorithm>

namespace srt::SRT_ISA_NS {

// Rows that share the unpacking of a group: their activations stay in the L1 cache.
constexpr int kBlockRows = 16;
// How far ahead to prefetch for few rows, which wait for memory: a page, where the processor's own
// prefetching stops. Past the end of the weights it does nothing.
constexpr int kBytesAhead = 4096;

// The activations of some rows, at one group.
template <class Code>
struct GroupRows {
  const Code *q;
  const float *scale, *sums;
  const int32_t *halves;  // of all rows, if there are any: from 2 * `at` on
  size_t at;
  int k, groups;  // of a row
};

// Sums of one channel block and up to kBlockRows rows.
struct BlockSums {
  alignas(64) float rows[kBlockRows][kBlock];
};

constexpr int kPlaneBytes = kGroup * kBlock;

// ---- activations of eight bits: codes as planes of small numbers ---------------------------------

struct PackedNibbles {
  SRT_INLINE void quads(const uint8_t *p, int j, B (&low)[1], B (&high)[1]) {
    Q4::quads(p, j, low[0], high[0]);
  }
};

struct PackedBytes {
  SRT_INLINE void quads(const uint8_t *p, int j, B (&low)[2], B (&high)[2]) {
    B first, second;
    Q8::quads(p, j, first, second);
    low[0] = low_nibbles(first), low[1] = high_nibbles(first);
    high[0] = low_nibbles(second), high[1] = high_nibbles(second);
  }
};

template <int P>
struct Unpacked {
  SRT_INLINE void quads(const uint8_t *p, int j, B (&low)[P], B (&high)[P]) {
    repeat<P>([&](auto i) {
      low[i] = load_bytes(p + i * kPlaneBytes + 64 * j);
      high[i] = load_bytes(p + i * kPlaneBytes + 64 * (j + 4));
    });
  }
};

// dot[r] = the group's dot products of row r. Each plane holds four more bits.
template <class Quads, int P, int R>
SRT_INLINE void dots_of_planes(const uint8_t *codes, const GroupRows<int8_t> &x, I (&dot)[R]) {
  W sums[R][P];
  repeat<4>([&](auto j) {
    B low[P], high[P];
    Quads::quads(codes, j, low, high);
    repeat<R>([&](auto r) {
      const Quad quad = load_quad(x.q + size_t(r) * x.k + 4 * j);
      repeat<P>([&](auto p) {
        const W products = multiply_pairs(low[p], quad);
        sums[r][p] = j == 0 ? products : add(sums[r][p], products);
      });
    });
    repeat<R>([&](auto r) {
      const Quad quad = load_quad(x.q + size_t(r) * x.k + 4 * (j + 4));
      repeat<P>([&](auto p) { sums[r][p] = add(sums[r][p], multiply_pairs(high[p], quad)); });
    });
  });
  repeat<R>([&](auto r) {
    dot[r] = widen(sums[r][0], 1);
    if constexpr (P == 2) dot[r] = add(dot[r], widen(sums[r][1], 16));
  });
}

template <class Packed, int P>
struct PlaneDots {
  static constexpr int kRows = P == 1 ? 4 : 2;  // whose sums fit the registers
  static constexpr int kUnpackedBytes = P * kPlaneBytes;

  SRT_INLINE void unpack(const uint8_t *codes, uint8_t *to) {
    for (int j = 0; j < 4; j++) {
      B low[P], high[P];
      Packed::quads(codes, j, low, high);
      for (int p = 0; p < P; p++) {
        store_bytes(to + p * kPlaneBytes + 64 * j, low[p]);
        store_bytes(to + p * kPlaneBytes + 64 * (j + 4), high[p]);
      }
    }
  }

  template <bool kIsUnpacked, int R>
  SRT_INLINE void group(const uint8_t *codes, const GroupRows<int8_t> &x, I (&dot)[R]) {
    dots_of_planes<std::conditional_t<kIsUnpacked, Unpacked<P>, Packed>, P>(codes, x, dot);
  }
};

// Codes of six bits, of half a group.
struct SixBitDots {
  static constexpr int kRows = 2, kUnpackedBytes = 0;

  template <bool, int R>
  SRT_INLINE void half(const uint8_t *codes, int half, const GroupRows<int8_t> &x, I (&dot)[R]) {
    repeat<2>([&](auto eight) {
      const int j = 4 * half + 2 * eight;
      const B first = load_bytes(codes + 64 * j), second = load_bytes(codes + 64 * (j + 1));
      repeat<R>([&](auto r) {
        const int8_t *q = x.q + size_t(r) * x.k + 4 * j;
        const W words = add(multiply_pairs(first, load_quad(q)),
                            multiply_pairs(second, load_quad(q + 4)));
        dot[r] = eight == 0 ? widen(words, 1) : add(dot[r], widen(words, 1));
      });
    });
  }
};

// ---- activations of 16 bits ----------------------------------------------------------------------

// Quad j of a group's codes, each in a byte.
template <class Format>
SRT_INLINE B quad_of(const uint8_t *codes, int j) {
  if constexpr (Format::kCode == kPlaneBytes) return load_bytes(codes + 64 * j);
  const B both = load_bytes(codes + 64 * (j % 4));
  return j < 4 ? low_nibbles(both) : high_nibbles(both);
}

template <class Format>
struct WordDots {
  static constexpr int kRows = 4, kUnpackedBytes = 2 * kPlaneBytes;

  SRT_INLINE void unpack(const uint8_t *codes, uint8_t *to) {
    for (int j = 0; j < 8; j++) {
      const B quad = quad_of<Format>(codes, j);
      store_words(to + 128 * j, even_bytes(quad));
      store_words(to + 128 * j + 64, odd_bytes(quad));
    }
  }

  // Quad j's part of dot[r].
  template <bool kIsUnpacked, int R>
  SRT_INLINE void add_quad(const uint8_t *codes, int j, const GroupRows<int16_t> &x, I (&dot)[R]) {
    W even, odd;
    if constexpr (kIsUnpacked) {
      even = load_words(codes + 128 * j), odd = load_words(codes + 128 * j + 64);
    } else {
      const B quad = quad_of<Format>(codes, j);
      even = even_bytes(quad), odd = odd_bytes(quad);
    }
    repeat<R>([&](auto r) {
      const int16_t *q = x.q + size_t(r) * x.k + 4 * j;
      dot[r] = add_products(add_products(dot[r], even, load_pair(q)), odd, load_pair(q + 2));
    });
  }

  template <bool kIsUnpacked, int R>
  SRT_INLINE void group(const uint8_t *codes, const GroupRows<int16_t> &x, I (&dot)[R]) {
    repeat<R>([&](auto r) { dot[r] = izero(); });
    repeat<4>([&](auto j) {
      add_quad<kIsUnpacked>(codes, j, x, dot);
      add_quad<kIsUnpacked>(codes, j + 4, x, dot);
    });
  }

  template <bool kIsUnpacked, int R>
  SRT_INLINE void half(const uint8_t *codes, int half, const GroupRows<int16_t> &x, I (&dot)[R]) {
    repeat<R>([&](auto r) { dot[r] = izero(); });
    repeat<4>([&](auto j) { add_quad<kIsUnpacked>(codes, 4 * half + j, x, dot); });
  }
};

// ---- formats: a group's contribution to R rows ---------------------------------------------------

template <class Format, class Code>
struct DotsOf {
  using Kind = PlaneDots<PackedNibbles, 1>;
};
template <>
struct DotsOf<Q8, int8_t> {
  using Kind = PlaneDots<PackedBytes, 2>;
};
template <>
struct DotsOf<Q6, int8_t> {
  using Kind = SixBitDots;
};
template <class Format>
struct DotsOf<Format, int16_t> {
  using Kind = WordDots<Format>;
};

template <class Format, class Code>
struct Words : DotsOf<Format, Code>::Kind {
  template <bool kIsUnpacked, int R>
  SRT_INLINE void add_group(const uint8_t *codes, const uint8_t *scales, const GroupRows<Code> &x,
                            float (*sums)[kBlock]) {
    I dot[R];
    Words::template group<kIsUnpacked>(codes, x, dot);
    F d, m;
    Format::scales(scales, d, m);
    repeat<R>([&](auto r) {
      const F by = mul(d, set1(x.scale[size_t(r) * x.groups]));
      if constexpr (Format::kOffset != 0) {
        const int32_t *halves = x.halves + (x.at + size_t(r) * x.groups) * 2;
        const I products = sub(dot[r], iset1(Format::kOffset * (halves[0] + halves[1])));
        store(sums[r], fma(to_float(products), by, load(sums[r])));
      } else {
        const F sum = fma(to_float(dot[r]), by, load(sums[r]));
        store(sums[r], fma(m, set1(x.sums[size_t(r) * x.groups]), sum));
      }
    });
  }
};

// Two scales per group, one for each half of its inputs.
template <class Code>
struct Words<Q6, Code> : DotsOf<Q6, Code>::Kind {
  template <bool kIsUnpacked, int R>
  SRT_INLINE void add_group(const uint8_t *codes, const uint8_t *scales, const GroupRows<Code> &x,
                            float (*sums)[kBlock]) {
    repeat<2>([&](auto half) {
      I dot[R];
      Words::template half<kIsUnpacked>(codes, half, x, dot);
      const F by = load(reinterpret_cast<const float *>(scales) + 16 * half);
      repeat<R>([&](auto r) {
        const F both = mul(by, set1(x.scale[size_t(r) * x.groups]));
        const int32_t codes_of_half = x.halves[(x.at + size_t(r) * x.groups) * 2 + half];
        const I products = sub(dot[r], iset1(Q6::kOffset * codes_of_half));
        store(sums[r], fma(to_float(products), both, load(sums[r])));
      });
    });
  }
};

// ---- blocks over rows ---------------------------------------------------------------------------

template <class Code>
SRT_INLINE GroupRows<Code> rows_at(const Codes<Code> &x, int k, size_t row, int group) {
  const int groups = k / kGroup;
  const size_t at = row * groups + group;
  return {x.q + row * k + size_t(group) * kGroup, x.scale + at, x.sums + at, x.halves, at, k, groups};
}

template <class Format>
SRT_INLINE const uint8_t *scales_of(const uint8_t *block, int k) {
  return block + size_t(k / kGroup) * Format::kCode;
}

// A group's contribution to `count` <= R rows.
template <class Format, int R, class Code>
SRT_INLINE void add_tile(int count, const uint8_t *codes, const uint8_t *scales,
                         const GroupRows<Code> &x, float (*sums)[kBlock]) {
  if (count == R)
    Words<Format, Code>::template add_group<true, R>(codes, scales, x, sums);
  else if constexpr (R > 1)
    add_tile<Format, R - 1>(count, codes, scales, x, sums);
}

// R rows over all groups, read as they are packed.
template <class Format, int R, class Code>
SRT_FLATTEN void few_rows(const uint8_t *block, int k, const Codes<Code> &x, size_t row,
                          BlockSums &sums) {
  const uint8_t *scales = scales_of<Format>(block, k);
  for (int g = 0; g < k / kGroup; g++) {
    const uint8_t *codes = block + size_t(g) * Format::kCode;
    for (int line = 0; line < Format::kCode; line += 64) prefetch(codes + kBytesAhead + line);
    Words<Format, Code>::template add_group<false, R>(codes, scales + size_t(g) * Format::kScale,
                                                      rows_at(x, k, row, g), sums.rows);
  }
}

// `rows` <= kBlockRows rows over all groups.
template <class Format, class Code>
SRT_FLATTEN void many_rows(const uint8_t *block, int k, const Codes<Code> &x, size_t row, int rows,
                           BlockSums &sums) {
  using Kind = Words<Format, Code>;
  const uint8_t *scales = scales_of<Format>(block, k);
  alignas(64) uint8_t unpacked[std::max(1, Kind::kUnpackedBytes)];
  for (int g = 0; g < k / kGroup; g++) {
    const uint8_t *codes = block + size_t(g) * Format::kCode;
    if constexpr (Kind::kUnpackedBytes > 0) {
      Kind::unpack(codes, unpacked);
      codes = unpacked;
    }
    for (int r = 0; r < rows; r += Kind::kRows)
      add_tile<Format, Kind::kRows>(std::min(Kind::kRows, rows - r), reloaded(codes),
                                    scales + size_t(g) * Format::kScale,
                                    rows_at(x, k, row + r, g), sums.rows + r);
  }
}

template <class Format, int R, class Code>
static void sums_of_block(const uint8_t *block, int k, const Codes<Code> &x, size_t row, int rows,
                          BlockSums &sums) {
  if (rows > Words<Format, Code>::kRows)
    many_rows<Format>(block, k, x, row, rows, sums);
  else if (rows == R)
    few_rows<Format, R>(block, k, x, row, sums);
  else if constexpr (R > 1)
    sums_of_block<Format, R - 1>(block, k, x, row, rows, sums);
}

// Codes of eight bits take two products of bytes anyway, one per plane of four bits, and sums of
// six-bit codes are widened early: products of words cost no more. Codes of four bits take one. Words
// of twelve bits would take as long as those of 16.
static Width width_of(int32_t format, int32_t bits) {
  const bool prefers_words = format == SRT_Q8 || format == SRT_Q6;
  return bits > 8 || (bits == 0 && prefers_words) ? Width::kWords : Width::kBytes;
}

template <class Format, class Code, int N>
static void quantized_blocks(const LinearTask &task, int pair, const uint8_t *const (&w)[N],
                             int first_row, int last_row, uint8_t *) {
  for (int row = first_row; row < last_row; row += kBlockRows) {
    const int rows = std::min(kBlockRows, last_row - row);
    BlockSums sums[N];
    for (int n = 0; n < N; n++) {
      for (int r = 0; r < rows; r++) store(sums[n].rows[r], zero());
      sums_of_block<Format, Words<Format, Code>::kRows>(w[n], task.w[0]->k, task.x.codes<Code>(),
                                                        row, rows, sums[n]);
    }
    for (int r = 0; r < rows; r++) {
      F acc[1][N];
      repeat<N>([&](auto n) { acc[0][n] = load(sums[n].rows[r]); });
      add_bias(task, pair, acc);
      write_tile(task, pair, row + r, acc);
    }
  }
}

}  // namespace srt::SRT_ISA_NS
