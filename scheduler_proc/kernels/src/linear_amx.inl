// Linear layers over weights in tiles: y = (w @ x.T).T on AMX's bfloat16 products. See isa_amx.cpp.
//
// Weights are made bfloat16 as they are needed, once for all rows of a call, by one fused
// multiplication and addition and a truncation. Scales are enlarged a little first, to make up for
// what truncation takes away on average: a weight is within 3/4 of a unit in the last
// place of the file's.
#include <algorithm>

#include "tile_values.inl"

#include "linear_output.inl"

namespace srt::amx {

// Truncation takes half a unit in the last place on average, which is between 2^-9 and 2^-8 of x.
constexpr float kEnlarge = 1.f + 0x1.63p-9f;

constexpr int kAhead = 8;   // groups, of prefetching
constexpr int kLag = 1;     // groups by which the products follow the weights
constexpr int kRecent = 4;  // groups that are kept if none is needed again

// ---- groups of weights as tiles: [16 channels][32 inputs] ----------------------------------------

// The exponent and mantissa of 2^(23 - shift), with the field of bits at `shift` in the mantissa:
// a float that is 2^(23 - shift) + the field.
template <int kShift, int kField>
SRT_INLINE F with_field(I x) {
  const I mask = _mm512_set1_epi32(kField << kShift);
  const I exponent = _mm512_set1_epi32((127 + 23 - kShift) << 23);
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(x, mask, exponent, 0xea));
}

// Upper halves of both: even's below odd's.
SRT_INLINE I upper_halves(F even, F odd) {
  const I order = _mm512_set4_epi32(0x00000f0e, 0x00000b0a, 0x00000706, 0x00000302);
  return _mm512_mask_shuffle_epi8(_mm512_castps_si512(odd), 0x3333333333333333ull,
                                  _mm512_castps_si512(even), order);
}

// A group's scales as they are used, by channel. A channel's scale is broadcast by a load:
// permuting a register would occupy the execution unit that the codes need. They are made some
// groups ahead, because what was stored only just now is slow to load.
struct Scales {
  alignas(64) float a[16], b[16], c[16];
};

// Four-bit codes: w = a * code + b.
template <class Stored>
SRT_INLINE void scales_4(const uint8_t *from, Scales &to) {
  const Stored *d = reinterpret_cast<const Stored *>(from);
  store(to.a, mul(load(d), set1(kEnlarge)));
  store(to.b, mul(load(d + 16), set1(kEnlarge)));
}

// A channel's sixteen values are a table in the upper halves of a register, and one permutation of
// words looks up 32 codes.
SRT_INLINE void dequantize_4(const uint8_t *codes, const Scales &scales, uint8_t *out) {
  const F values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  repeat<4>([&](auto four) {
    const I fields = load_bytes(codes + 64 * four);
    // An index is twice the code, plus one for the upper half. In the word, that lowest bit belongs
    // to the code before, so even and odd codes are looked up in separate copies.
    const I copies[2] = {_mm512_or_si512(fields, _mm512_set1_epi16(0x101)),
                         _mm512_or_si512(fields, _mm512_set1_epi16(0x1010))};
    repeat<4>([&](auto i) {
      constexpr int c = 4 * four + i;
      const F table = fma(values, set1(scales.a[c]), set1(scales.b[c]));
      const I at = i == 0 ? copies[0] : _mm512_ror_epi32(copies[i % 2], 4 * i);
      const I row = _mm512_permutexvar_epi16(at, _mm512_castps_si512(table));
      _mm512_store_si512(out + 64 * c, row);
    });
  });
}

// Eight-bit codes of one scale: w = a * (the code's field as a float) + b or c.
SRT_INLINE void scales_8(const uint8_t *from, Scales &to) {
  const F d = mul(load(reinterpret_cast<const f16 *>(from)), set1(kEnlarge));
  store(to.a, d);
  store(to.b, mul(d, set1(-65536.f - 128.f)));
  store(to.c, mul(d, set1(-256.f - 128.f)));
}

SRT_INLINE void dequantize_8(const uint8_t *codes, const Scales &scales, uint8_t *out) {
  repeat<8>([&](auto two) {
    const I both = load_bytes(codes + 64 * two);
    repeat<2>([&](auto i) {
      constexpr int c = 2 * two + i;
      const I x = i == 0 ? both : _mm512_ror_epi32(both, 16);
      const F even = fma(with_field<7, 255>(x), set1(scales.a[c]), set1(scales.b[c]));
      const F odd = fma(with_field<15, 255>(x), set1(scales.a[c]), set1(scales.c[c]));
      _mm512_store_si512(out + 64 * c, upper_halves(even, odd));
    });
  });
}

// Eight-bit codes of SRT_Q6: a scale for each half of the inputs, a and b.
SRT_INLINE void scales_6(const uint8_t *from, Scales &to) {
  const float *d = reinterpret_cast<const float *>(from);
  store(to.a, mul(load(d), set1(kEnlarge)));
  store(to.b, mul(load(d + 16), set1(kEnlarge)));
}

SRT_INLINE void dequantize_6(const uint8_t *codes, const Scales &scales, uint8_t *out) {
  repeat<8>([&](auto two) {
    const I both = load_bytes(codes + 64 * two);
    repeat<2>([&](auto i) {
      constexpr int c = 2 * two + i;
      const I x = i == 0 ? both : _mm512_ror_epi32(both, 16);
      const F by = first_lanes(8, set1(scales.a[c]), set1(scales.b[c]));
      const F even = mul(sub(with_field<7, 255>(x), set1(65536.f + 32.f)), by);
      const F odd = mul(sub(with_field<15, 255>(x), set1(256.f + 32.f)), by);
      _mm512_store_si512(out + 64 * c, upper_halves(even, odd));
    });
  });
}

template <int32_t kFormat>
SRT_INLINE void read_scales(const uint8_t *from, Scales &to) {
  if constexpr (kFormat == SRT_Q4_TILES) scales_4<f16>(from, to);
  if constexpr (kFormat == SRT_Q4K_TILES) scales_4<float>(from, to);
  if constexpr (kFormat == SRT_Q8_TILES) scales_8(from, to);
  if constexpr (kFormat == SRT_Q6_TILES) scales_6(from, to);
}

template <int32_t kFormat>
SRT_INLINE void dequantize(const uint8_t *codes, const Scales &scales, uint8_t *out) {
  if constexpr (sizes_of(kFormat).code_bytes == 256)
    dequantize_4(codes, scales, out);
  else if constexpr (kFormat == SRT_Q8_TILES)
    dequantize_8(codes, scales, out);
  else
    dequantize_6(codes, scales, out);
}

// ---- products of tiles --------------------------------------------------------------------------

// One group: N channel blocks times T row tiles. `x` are the group's tiles of activations; if
// `kPassing`, they should not push the weights out of the first-level cache.
template <int N, int T, bool kPassing>
SRT_INLINE void multiply(const uint8_t *w, const bf16 *const (&x)[T], int stride) {
  SRT_TILE_LOAD(4, w, 64);
  if constexpr (N == 2) SRT_TILE_LOAD(5, w + kTileBytes, 64);
  if constexpr (kPassing)
    SRT_TILE_LOAD_PASSING(6, x[0], stride);
  else
    SRT_TILE_LOAD(6, x[0], stride);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (N == 2) _tile_dpbf16ps(1, 5, 6);
  if constexpr (T == 2) {
    if constexpr (kPassing)
      SRT_TILE_LOAD_PASSING(7, x[1], stride);
    else
      SRT_TILE_LOAD(7, x[1], stride);
    _tile_dpbf16ps(2, 4, 7);
    if constexpr (N == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

template <int N, int T>
SRT_INLINE void store_products(float *to, int stride) {
  SRT_TILE_STORE(0, to, stride);
  if constexpr (N == 2) SRT_TILE_STORE(1, to + 256, stride);
  if constexpr (T == 2) SRT_TILE_STORE(2, to + 256 * N, stride);
  if constexpr (N * T == 4) SRT_TILE_STORE(3, to + 768, stride);
}

// ---- outputs ------------------------------------------------------------------------------------

// x / (1 + e^-x), for what is then rounded to bfloat16.
SRT_INLINE F rough_silu(F x) {
  const F power = mul(x, set1(-kLog2E));
  return mul(x, _mm512_rcp14_ps(add(set1(1.f), rough_exp2(min(power, set1(126.f))))));
}

// One row's products, which lie side by side.
template <int N>
SRT_INLINE void write_row(const LinearTask &task, int pair, int row, const float *products) {
  F acc[1][N];
  repeat<N>([&](auto n) { acc[0][n] = load(products + 256 * n); });
  add_bias(task, pair, acc);
  if constexpr (N == 2)
    if (task.output == Output::kSiluTiles) {
      const I gated = to_bf16(mul(rough_silu(acc[0][0]), acc[0][1]), zero());
      return _mm256_storeu_si256(reinterpret_cast<__m256i *>(task.tiles + size_t(pair) * kBlock),
                                 _mm512_castsi512_si256(gated));
    }
  write_tile(task, pair, size_t(row), acc);
}

// The products of one block of both matrices as activations of the next layer: these
// channels are its inputs, so nothing needs transposing.
SRT_INLINE void write_activations(const LinearTask &task, int block, int row,
                                  const float *products) {
  const int columns = task.x.columns;
  const __mmask16 lanes = static_cast<__mmask16>((1u << columns) - 1);
  bf16 *out = task.tiles + size_t(row) * task.w[0]->n + size_t(block) * kBlock * columns;
  const auto gated = [&](int channel) {
    F x[2];
    repeat<2>([&](auto n) {
      x[n] = load(products + 256 * n + 16 * channel);
      const float *bias = task.w[n]->bias;
      if (bias != nullptr) x[n] = add(x[n], set1(bias[block * kBlock + channel]));
    });
    return mul(rough_silu(x[0]), x[1]);
  };
  repeat<kBlock / 2>([&](auto p) {
    const I pair = interleave(to_bf16(gated(2 * p), gated(2 * p + 1)));
    _mm512_mask_storeu_epi32(out + size_t(p) * 2 * columns, lanes, pair);
  });
}

// Rows of y from the channels of a block, [16 channels][16 rows].
SRT_INLINE void write_transposed(const LinearTask &task, int block, int row, int count, F (&r)[16]) {
  transpose(r);
  float *y = task.y + row * task.ldy + size_t(block) * kBlock;
  const bool onto = task.output == Output::kAdd;
  repeat<16>([&](auto i) {
    if (i >= count) return;
    float *to = y + i * task.ldy;
    store(to, onto ? fma(r[i], set1(task.scale), load(to)) : r[i]);
  });
}

// A tile of products [16 channels][16 rows], with its block's bias.
SRT_INLINE void load_products(const srt_matrix &w, int block, const float *products, F (&r)[16]) {
  repeat<16>([&](auto i) { r[i] = load(products + 16 * i); });
  if (w.bias == nullptr) return;
  repeat<16>([&](auto i) { r[i] = add(r[i], set1(w.bias[block * kBlock + i])); });
}

// The products of N channel blocks as `count` rows of the task.
template <int N>
SRT_FLATTEN void write_rows(const LinearTask &task, int pair, int row, int count,
                            const float *products) {
  if (task.x.columns == 1) return write_row<N>(task, pair, row, products);
  if constexpr (N == 2)
    if (task.output == Output::kSiluTiles) return write_activations(task, pair, row, products);
  F r[16];
  if (task.output == Output::kSiluMul) {
    F up[16];
    load_products(*task.w[0], pair, products, r);
    load_products(*task.w[1], pair, products + 256, up);
    repeat<16>([&](auto i) { r[i] = mul(silu(r[i]), up[i]); });
    return write_transposed(task, pair, row, count, r);
  }
  for (int n = 0; n < N; n++) {
    load_products(*task.w[0], pair * 2 + n, products + 256 * n, r);
    write_transposed(task, pair * 2 + n, row, count, r);
  }
}

// ---- units --------------------------------------------------------------------------------------

// The channel blocks of one pair, and where their tiles and products are.
template <int N>
struct Unit {
  const LinearTask &task;
  int pair, groups;
  const uint8_t *const (&w)[N];
  size_t to_next;   // bytes from a block to the next pair's
  uint8_t *tiles;   // [groups][N] tiles
  float *products;  // [2][N] tiles
};

template <int kBytes>
SRT_INLINE void prefetch_lines(const uint8_t *p) {
  for (int line = 0; line < kBytes; line += 64) prefetch(p + line);
}

// Turns the groups of a unit's weights into tiles, in order.
template <int32_t kFormat, int N>
class Dequantizer {
 public:
  explicit Dequantizer(const Unit<N> &unit) : unit_(unit) {
    for (int g = 0; g < kScalesAhead && g < unit.groups; g++) read(g);
  }
  inline __attribute__((always_inline)) void next(int g, uint8_t *out) {
    if (g + kScalesAhead < unit_.groups) read(g + kScalesAhead);
    for (int n = 0; n < N; n++) {
      const uint8_t *codes = unit_.w[n] + size_t(g) * kCode;
      prefetch_lines<kCode>(unit_.w[n] + ahead(g, kCode));
      dequantize<kFormat>(codes, scales_[g % kRing][n], out + kTileBytes * n);
    }
  }

 private:
  static constexpr FormatSizes kSizes = sizes_of(kFormat);
  static constexpr int kCode = kSizes.code_bytes, kScale = kSizes.scale_bytes;
  static constexpr int kScalesAhead = 2, kRing = 4;

  inline __attribute__((always_inline)) void read(int g) {
    for (int n = 0; n < N; n++) {
      const uint8_t *from = unit_.w[n] + size_t(unit_.groups) * kCode + size_t(g) * kScale;
      prefetch_lines<kScale>(unit_.w[n] + size_t(unit_.groups) * kCode + ahead(g, kScale));
      read_scales<kFormat>(from, scales_[g % kRing][n]);
    }
  }

  // Where the group `kAhead` groups after g is, which may be in the next pair's block.
  inline __attribute__((always_inline)) size_t ahead(int g, int bytes) const {
    const int to = g + kAhead - unit_.groups;
    return to < 0 ? size_t(g + kAhead) * bytes : unit_.to_next + size_t(to) * bytes;
  }

  const Unit<N> &unit_;
  Scales scales_[kRing][N];
};

// T row tiles from `row` on. The first time, weights are dequantised one group ahead of the
// products; they are kept if more rows follow.
template <int32_t kFormat, int N, int T, bool kFirst>
SRT_FLATTEN void row_tiles(const Unit<N> &unit, int row, int last_row) {
  const Activations &input = unit.task.x;
  const int columns = input.columns, stride = 4 * columns, k = unit.groups * kGroup;
  const size_t group = size_t(kGroup) * columns;
  const int kept = kFirst && last_row <= row + T * kTileRows ? kRecent - 1 : -1;
  const auto tiles_of = [&](int g) { return unit.tiles + size_t(g & kept) * N * kTileBytes; };
  const bf16 *x[T];
  repeat<T>([&](auto t) { x[t] = input.tiles + (size_t(row) + t * kTileRows) * k; });
  clear_products<N, T>();
  const auto products = [&](int g) {
    multiply<N, T, !kFirst>(tiles_of(g), x, stride);
    repeat<T>([&](auto t) { x[t] += group; });
  };
  if constexpr (kFirst) {
    Dequantizer<kFormat, N> weights(unit);
    for (int g = 0; g < unit.groups; g++) {
      weights.next(g, tiles_of(g));
      if (g >= kLag) products(g - kLag);
    }
    for (int g = std::max(0, unit.groups - kLag); g < unit.groups; g++) products(g);
  } else {
    for (int g = 0; g < unit.groups; g++) products(g);
  }
  store_products<N, T>(unit.products, columns == 1 ? 4 : 64);
  for (int t = 0; t < T; t++) {
    const int from = row + t * kTileRows, count = last_row - from;
    write_rows<N>(unit.task, unit.pair, from, count < kTileRows ? count : kTileRows,
                  unit.products + 256 * N * t);
  }
}

template <int32_t kFormat, int N>
static void all_rows(const Unit<N> &unit, int row, int last_row) {
  if (last_row - row <= kTileRows) return row_tiles<kFormat, N, 1, true>(unit, row, last_row);
  row_tiles<kFormat, N, 2, true>(unit, row, last_row);
  for (row += 2 * kTileRows; row + kTileRows < last_row; row += 2 * kTileRows)
    row_tiles<kFormat, N, 2, false>(unit, row, last_row);
  if (row < last_row) row_tiles<kFormat, N, 1, false>(unit, row, last_row);
}

template <int32_t kFormat>
static void pair_of_blocks(const LinearTask &task, int pair, int first_row, int last_row,
                           uint8_t *scratch) {
  const srt_matrix &a = *task.w[0];
  const size_t bytes = channel_block_bytes(a.format, a.k);
  const auto *base = static_cast<const uint8_t *>(a.data);
  const int groups = a.k / kGroup;
  auto *products = reinterpret_cast<float *>(scratch);
  uint8_t *tiles = scratch + 4 * kTileBytes;
  if (is_gated(task.output)) {
    const auto *up = static_cast<const uint8_t *>(task.w[1]->data);
    const uint8_t *const w[2] = {base + pair * bytes, up + pair * bytes};
    all_rows<kFormat, 2>({task, pair, groups, w, bytes, tiles, products}, first_row, last_row);
  } else if (pair * 2 + 1 < blocks_of(a.n)) {
    const uint8_t *const w[2] = {base + pair * 2 * bytes, base + (pair * 2 + 1) * bytes};
    all_rows<kFormat, 2>({task, pair, groups, w, 2 * bytes, tiles, products}, first_row, last_row);
  } else {
    const uint8_t *const w[1] = {base + pair * 2 * bytes};
    all_rows<kFormat, 1>({task, pair, groups, w, 2 * bytes, tiles, products}, first_row, last_row);
  }
}

static void linear(const LinearTask &task, int first, int last, int first_row, int last_row,
                   uint8_t *scratch) {
  configure(task.x.columns);
  const auto run = [&](auto format) {
    for (int pair = first; pair < last; pair++)
      pair_of_blocks<format>(task, pair, first_row, last_row, scratch);
  };
  switch (task.w[0]->format) {
    case SRT_Q4_TILES: run(std::integral_constant<int32_t, SRT_Q4_TILES>()); break;
    case SRT_Q4K_TILES: run(std::integral_constant<int32_t, SRT_Q4K_TILES>()); break;
    case SRT_Q8_TILES: run(std::integral_constant<int32_t, SRT_Q8_TILES>()); break;
    case SRT_Q6_TILES: run(std::integral_constant<int32_t, SRT_Q6_TILES>()); break;
  }
}

// ---- activations --------------------------------------------------------------------------------

// [count][k] floats as [k/2][columns][2], rounded to nearest even. Columns without a row
// are copies of the last row.
static void tile(const float *const *rows, int count, int k, int columns, bf16 *out) {
  const __mmask16 lanes = static_cast<__mmask16>((1u << columns) - 1);
  for (int i = 0; i < k; i += kGroup, out += kGroup * columns) {
    if (columns == 1) {
      const __m512bh pairs = _mm512_cvtne2ps_pbh(load(rows[0] + i + 16), load(rows[0] + i));
      _mm512_storeu_si512(out, reinterpret_cast<const I &>(pairs));
      continue;
    }
    F r[16];
    for (int row = 0; row < 16; row++) {
      const float *x = rows[row < count ? row : count - 1] + i;
      const __m512bh pairs = _mm512_cvtne2ps_pbh(load(x + 16), load(x));
      r[row] = reinterpret_cast<const F &>(pairs);
    }
    transpose(r);
    for (int pair = 0; pair < 16; pair++)
      _mm512_mask_storeu_ps(out + size_t(pair) * columns * 2, lanes, r[pair]);
  }
}

}  // namespace srt::amx
