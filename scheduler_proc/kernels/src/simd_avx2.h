// Sixteen-lane vectors on AVX2 with FMA and F16C: each is a pair of registers. The interface and
// its contracts are simd_avx512.h's; isa_avx2.cpp builds the kernels on it.
//
// dot4 widens to 16 bits before it multiplies, because maddubs saturates.
#pragma once
#include <immintrin.h>

#include "numeric.h"

#define SRT_ISA_NS avx2
#define SRT_ISA_NAME "avx2"

namespace srt::SRT_ISA_NS {

struct F {
  __m256 lo, hi;  // lanes 0..7 and 8..15
};
struct I {
  __m256i lo, hi;
};
struct B {
  __m256i lo, hi;  // bytes 0..31 and 32..63: those of I's lanes
};

// Register tiles that fit 16 registers; a vector takes two.
constexpr int kVectorRegisters = 8;
constexpr int kGemmRows = 2;
constexpr int kScoreRows = 2;
constexpr int kRowsInPlace = 0;        // see simd_avx512.h; not measured here
constexpr int kValueRegisters = 6;
constexpr int kRowsAhead = 32;  // see simd_avx512.h

SRT_INLINE F load(const float *p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SRT_INLINE __m128i load_8x16(const void *p) {
  return _mm_loadu_si128(static_cast<const __m128i *>(p));
}
SRT_INLINE F load(const f16 *p) {
  return {_mm256_cvtph_ps(load_8x16(p)), _mm256_cvtph_ps(load_8x16(p + 8))};
}
SRT_INLINE __m256 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
SRT_INLINE F load(const bf16 *p) {
  return {widen_bf16(load_8x16(p)), widen_bf16(load_8x16(p + 8))};
}
SRT_INLINE void store(float *p, F x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
SRT_INLINE void store(f16 *p, F x) {
  constexpr int rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  __m128i *out = reinterpret_cast<__m128i *>(p);
  _mm_storeu_si128(out, _mm256_cvtps_ph(x.lo, rounding));
  _mm_storeu_si128(out + 1, _mm256_cvtps_ph(x.hi, rounding));
}

// x, kept in registers: the compiler would otherwise load an operand again for each use.
SRT_INLINE F in_register(F x) {
  asm("" : "+x"(x.lo), "+x"(x.hi));
  return x;
}
SRT_INLINE I in_register(I x) {
  asm("" : "+x"(x.lo), "+x"(x.hi));
  return x;
}
SRT_INLINE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SRT_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SRT_INLINE F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
SRT_INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
SRT_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
SRT_INLINE F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
SRT_INLINE F fma(F a, F b, F c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
SRT_INLINE F fnma(F a, F b, F c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
// min and max are the second operand if either is NaN.
SRT_INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
SRT_INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
SRT_INLINE F abs(F a) {
  const __m256 sign = _mm256_set1_ps(-0.f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

// Lane i of the result is a's where i < n, else b's. n may be negative or above 16.
SRT_INLINE F first_lanes(int n, F a, F b) {
  const __m256i count = _mm256_set1_epi32(n), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lo = _mm256_cmpgt_epi32(count, lane);
  const __m256i hi = _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8)));
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(hi))};
}

SRT_INLINE float sum(F x) {
  const __m256 eight = _mm256_add_ps(x.lo, x.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
SRT_INLINE float first(F x) { return _mm256_cvtss_f32(x.lo); }
SRT_INLINE float largest(F x) {
  const __m256 eight = _mm256_max_ps(x.lo, x.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// p * 2^n where x >= -87.3, else 0. For such x up to 88, 2^n is a normal float.
SRT_INLINE __m256 scale_where_alive(__m256 p, __m256 n, __m256 x) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  const __m256 scaled = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  return _mm256_and_ps(scaled, _mm256_cmp_ps(x, _mm256_set1_ps(-87.3f), _CMP_GE_OQ));
}
SRT_INLINE F nearest(F x) {
  constexpr int rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.lo, rounding), _mm256_round_ps(x.hi, rounding)};
}
// e^x; 0 below -87.3, e^88 above 88. The same steps as in simd_avx512.h, hence the same results.
SRT_INLINE F exp(F x) {
  x = {_mm256_min_ps(_mm256_set1_ps(88.f), x.lo), _mm256_min_ps(_mm256_set1_ps(88.f), x.hi)};
  const F n = nearest(mul(x, set1(1.44269504f)));
  F f = fnma(n, set1(0.693145752f), x);
  f = fnma(n, set1(1.42860677e-6f), f);
  F p = set1(1.f / 720);
  p = fma(p, f, set1(1.f / 120));
  p = fma(p, f, set1(1.f / 24));
  p = fma(p, f, set1(1.f / 6));
  p = fma(p, f, set1(.5f));
  p = fma(p, f, set1(1.f));
  p = fma(p, f, set1(1.f));
  return {scale_where_alive(p.lo, n.lo, x.lo), scale_where_alive(p.hi, n.hi, x.hi)};
}

// 2^x for x <= 0, within about 3 ulp; 0 below -87.3.
SRT_INLINE F exp2(F x) {
  const F n = nearest(x), f = sub(x, n);
  F p = set1(1.540353e-4f);
  p = fma(p, f, set1(1.3333558e-3f));
  p = fma(p, f, set1(9.6181291e-3f));
  p = fma(p, f, set1(5.5504109e-2f));
  p = fma(p, f, set1(.24022651f));
  p = fma(p, f, set1(.69314718f));
  p = fma(p, f, set1(1.f));
  return {scale_where_alive(p.lo, n.lo, x.lo), scale_where_alive(p.hi, n.hi, x.hi)};
}

// The largest |lane| of both; NaN if there is one (as integers, NaN is above infinity).
SRT_INLINE float largest_magnitude(F a, F b) {
  const F x = abs(a), y = abs(b);
  const __m256i eight = _mm256_max_epu32(
      _mm256_max_epu32(_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)),
      _mm256_max_epu32(_mm256_castps_si256(y.lo), _mm256_castps_si256(y.hi)));
  const __m128i four =
      _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  const __m128i one = _mm_max_epu32(two, _mm_shuffle_epi32(two, 0xb1));
  return float_from_bits(static_cast<uint32_t>(_mm_cvtsi128_si32(one)));
}

// ---- int8 dot products --------------------------------------------------------------------------

SRT_INLINE I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SRT_INLINE F to_float(I x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
SRT_INLINE B load_bytes(const uint8_t *p) {
  const __m256i *in = reinterpret_cast<const __m256i *>(p);
  return {_mm256_loadu_si256(in), _mm256_loadu_si256(in + 1)};
}
SRT_INLINE void store_bytes(uint8_t *p, B x) {
  __m256i *out = reinterpret_cast<__m256i *>(p);
  _mm256_storeu_si256(out, x.lo);
  _mm256_storeu_si256(out + 1, x.hi);
}
SRT_INLINE B low_nibbles(B x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)};
}
SRT_INLINE B high_nibbles(B x) {
  return low_nibbles({_mm256_srli_epi16(x.lo, 4), _mm256_srli_epi16(x.hi, 4)});
}
// Even and odd bytes of w as 16-bit numbers, each multiplied with its half of the four x.
SRT_INLINE __m256i dot4_half(__m256i acc, __m256i w, __m256i x_even, __m256i x_odd) {
  const __m256i even = _mm256_and_si256(w, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(w, 8);
  const __m256i products =
      _mm256_add_epi32(_mm256_madd_epi16(even, x_even), _mm256_madd_epi16(odd, x_odd));
  return _mm256_add_epi32(acc, products);
}
// acc[i] += sum over j < 4 of w[4i + j] * x[j], exactly, for the whole range of u8 x s8.
SRT_INLINE I dot4(I acc, B w, const int8_t *x) {
  int32_t quad;
  __builtin_memcpy(&quad, x, 4);
  const __m256i all = _mm256_set1_epi32(quad);
  const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8);
  const __m256i x_odd = _mm256_srai_epi16(all, 8);
  return {dot4_half(acc.lo, w.lo, x_even, x_odd), dot4_half(acc.hi, w.hi, x_even, x_odd)};
}

// ---- products of bytes in sums of 16 bits, for linear_words.inl ----------------------------------

#define SRT_WORD_SUMS

// Two sums of 16 bits for each lane of I.
struct W {
  __m256i lo, hi;
};
using Quad = __m256i;  // four bytes, in every lane of I
SRT_INLINE Quad load_quad(const int8_t *x) {
  int32_t quad;
  __builtin_memcpy(&quad, x, 4);
  return _mm256_set1_epi32(quad);
}
// w[2i] * x[2i] + w[2i + 1] * x[2i + 1], which must fit 16 bits.
SRT_INLINE W multiply_pairs(B w, Quad x) {
  return {_mm256_maddubs_epi16(w.lo, x), _mm256_maddubs_epi16(w.hi, x)};
}
// The compiler would make trees of such sums, which need far more registers than there are.
SRT_INLINE W add(W a, W b) {
  W sum = {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
  asm("" : "+x"(sum.lo), "+x"(sum.hi));
  return sum;
}
// Each lane's two sums together, times `by`.
SRT_INLINE I widen(W x, int16_t by) {
  const __m256i factor = _mm256_set1_epi16(by);
  return {_mm256_madd_epi16(x.lo, factor), _mm256_madd_epi16(x.hi, factor)};
}
// Bytes 0 and 2 of each lane of B as words, and bytes 1 and 3.
SRT_INLINE W even_bytes(B x) {
  const __m256i mask = _mm256_set1_epi16(255);
  return {_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)};
}
SRT_INLINE W odd_bytes(B x) { return {_mm256_srli_epi16(x.lo, 8), _mm256_srli_epi16(x.hi, 8)}; }
SRT_INLINE W load_words(const uint8_t *p) {
  const B x = load_bytes(p);
  return {x.lo, x.hi};
}
SRT_INLINE void store_words(uint8_t *p, W x) { store_bytes(p, {x.lo, x.hi}); }
using Pair = __m256i;  // two words, in every lane of I
SRT_INLINE Pair load_pair(const int16_t *x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, 4);
  return _mm256_set1_epi32(pair);
}
// acc + w[2i] * x[2i] + w[2i + 1] * x[2i + 1], exactly. No trees of sums, as in `add`.
SRT_INLINE I add_products(I acc, W w, Pair x) {
  I sum = {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(w.lo, x)),
           _mm256_add_epi32(acc.hi, _mm256_madd_epi16(w.hi, x))};
  asm("" : "+x"(sum.lo), "+x"(sum.hi));
  return sum;
}
// ---- products of words, for attention_words.inl ---------------------------------------------------

constexpr int kPairRows = 6, kPairVectors = 7;  // rows of a tile; its sums and columns
constexpr int kInPlaceRows = 8, kInPlaceTile = 4;  // rows that read the pool in place; at once
constexpr int kInPlaceVectors = 7;  // sums and columns of their tile

SRT_INLINE I load_pairs(const int16_t *p) {
  const B x = load_bytes(reinterpret_cast<const uint8_t *>(p));
  return {x.lo, x.hi};
}
SRT_INLINE void store_pairs(int16_t *p, I x) {
  store_bytes(reinterpret_cast<uint8_t *>(p), {x.lo, x.hi});
}
// Two words, in every lane.
SRT_INLINE I set_pair(const int16_t *x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, 4);
  return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
// The compiler's own order of such sums needs more registers than there are. (In add_products, which
// has fewer sums, its order is 2 to 5 % faster than this one.)
SRT_INLINE __m256i add_pairs_half(__m256i acc, __m256i w, __m256i x) {
  __m256i products;
  asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(acc), "=&x"(products) : "x"(w), "x"(x));
  return acc;
}
// acc[i] += w[2i] * x[2i] + w[2i + 1] * x[2i + 1].
SRT_INLINE I add_pairs(I acc, I w, I x) {
  return {add_pairs_half(acc.lo, w.lo, x.lo), add_pairs_half(acc.hi, w.hi, x.hi)};
}
// Sums on the way to that of all lanes.
using LaneSums = __m256i;
SRT_INLINE LaneSums lane_sums(I x) { return _mm256_add_epi32(x.lo, x.hi); }
SRT_INLINE __m256i sum_eight(const LaneSums *a) {
  const __m256i x = _mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]), _mm256_hadd_epi32(a[2], a[3]));
  const __m256i y = _mm256_hadd_epi32(_mm256_hadd_epi32(a[4], a[5]), _mm256_hadd_epi32(a[6], a[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(x, y, 0x20),
                          _mm256_permute2x128_si256(x, y, 0x31));
}
// out[i] = the sum of a[i].
SRT_INLINE I sum_lanes(const LaneSums (&a)[16]) { return {sum_eight(a), sum_eight(a + 8)}; }
// The larger of each two, compared as unsigned integers: of what is not negative, NaN above all.
SRT_INLINE F larger_bits(F a, F b) {
  const auto larger = [](__m256 x, __m256 y) {
    return _mm256_castsi256_ps(
        _mm256_max_epu32(_mm256_castps_si256(x), _mm256_castps_si256(y)));
  };
  return {larger(a.lo, b.lo), larger(a.hi, b.hi)};
}
// a[i] beside b[i] for sixteen words each, in an order that `in_order` makes theirs.
SRT_INLINE I interleave(const int16_t *a, const int16_t *b) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a));
  const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(b));
  return {_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y)};
}
SRT_INLINE F in_order(F x) {
  return {_mm256_permute2f128_ps(x.lo, x.hi, 0x20), _mm256_permute2f128_ps(x.lo, x.hi, 0x31)};
}

// p, but what was read through it before is loaded again: the compiler would otherwise keep it for
// the next round of a loop, in registers that it does not have.
SRT_INLINE const uint8_t *reloaded(const uint8_t *p) {
  asm volatile("" : "+r"(p) : : "memory");
  return p;
}

SRT_INLINE I rounded_lanes(F x) {
  return {_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)};
}
// The lanes as words: packs works within 128 bits, the permutation puts them back in order.
SRT_INLINE __m256i to_words(I x) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(x.lo, x.hi), 0xd8);
}
// Rounds to nearest-even words and stores sixteen.
SRT_INLINE void store_words(int16_t *p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), to_words(rounded_lanes(x)));
}
// Rounds to nearest-even int8 (|x| <= 127) and stores 16 bytes; returns the rounded lanes.
SRT_INLINE I store_int8(int8_t *p, F x) {
  const I rounded = rounded_lanes(x);
  const __m256i words = to_words(rounded);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), bytes);
  return rounded;
}
// Rounds to nearest-even codes (|x| <= 127 * 256) and stores half `half` of a group of 32: each
// quad's codes as 0, 2, 1, 3, like even_bytes and odd_bytes. Returns the rounded lanes.
SRT_INLINE I store_int16(int16_t *group, int half, F x) {
  const I rounded = rounded_lanes(x);
  const __m256i words =
      _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(to_words(rounded), 0xd8), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(group + 16 * half), words);
  return rounded;
}
SRT_INLINE I add(I a, I b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
SRT_INLINE I sub(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
SRT_INLINE I iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
SRT_INLINE int32_t sum(I x) {
  const __m256i eight = _mm256_add_epi32(x.lo, x.hi);
  const __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

// ---- layout -------------------------------------------------------------------------------------

// The lanes of a and b interleaved per 128 bits, the lower ones added to the upper ones.
SRT_INLINE F fold_pairs(F a, F b) {
  return {_mm256_add_ps(_mm256_unpacklo_ps(a.lo, b.lo), _mm256_unpackhi_ps(a.lo, b.lo)),
          _mm256_add_ps(_mm256_unpacklo_ps(a.hi, b.hi), _mm256_unpackhi_ps(a.hi, b.hi))};
}
// The sum of a's four quarters in the low half of the result, that of b's in the high half.
SRT_INLINE __m256 fold_quarters(F a, F b) {
  const __m256 lo = _mm256_add_ps(_mm256_permute2f128_ps(a.lo, b.lo, 0x20),
                                  _mm256_permute2f128_ps(a.lo, b.lo, 0x31));
  const __m256 hi = _mm256_add_ps(_mm256_permute2f128_ps(a.hi, b.hi, 0x20),
                                  _mm256_permute2f128_ps(a.hi, b.hi, 0x31));
  return _mm256_add_ps(lo, hi);
}
// out[i] = the sum of a[i]'s lanes, added as the tree l^2, l^1, l^4, l^8 over lane numbers l.
SRT_INLINE F sum_lanes(const F (&a)[16]) {
  F c[4];  // c[i]: per quarter, the sums of rows i, i + 4, i + 8, i + 12
  for (int i = 0; i < 4; i++)
    c[i] = fold_pairs(fold_pairs(a[i], a[i + 8]), fold_pairs(a[i + 4], a[i + 12]));
  const __m256 d01 = fold_quarters(c[0], c[1]), d23 = fold_quarters(c[2], c[3]);
  __m128 r0 = _mm256_castps256_ps128(d01), r1 = _mm256_extractf128_ps(d01, 1);
  __m128 r2 = _mm256_castps256_ps128(d23), r3 = _mm256_extractf128_ps(d23, 1);
  _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
  return {_mm256_set_m128(r1, r0), _mm256_set_m128(r3, r2)};
}

SRT_INLINE void transpose_8x8(__m256 (&r)[8]) {
  __m256 t[8];
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    const __m256 upper = r[i], lower = r[i + 4];
    r[i] = _mm256_permute2f128_ps(upper, lower, 0x20);
    r[i + 4] = _mm256_permute2f128_ps(upper, lower, 0x31);
  }
}
// Transpose 16 rows of 16 floats in place, by quadrants.
SRT_INLINE void transpose(F (&r)[16]) {
  __m256 q[4][8];
  for (int i = 0; i < 8; i++) {
    q[0][i] = r[i].lo;
    q[1][i] = r[i].hi;
    q[2][i] = r[i + 8].lo;
    q[3][i] = r[i + 8].hi;
  }
  for (auto &quadrant : q) transpose_8x8(quadrant);
  for (int i = 0; i < 8; i++) {
    r[i] = {q[0][i], q[2][i]};
    r[i + 8] = {q[1][i], q[3][i]};
  }
}

SRT_INLINE void prefetch(const void *p) { _mm_prefetch(static_cast<const char *>(p), _MM_HINT_T0); }

}  // namespace srt::SRT_ISA_NS
