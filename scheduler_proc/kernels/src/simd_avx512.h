// Sixteen-lane vectors on AVX-512 (F, BW, VL, DQ, VNNI). The kernels are written once against this
// interface; simd_avx2.h and simd_portable.h implement it with two registers or plain arrays.
//
// F: 16 floats, I: 16 int32, B: 64 unsigned bytes. Reductions add in one fixed order, so a kernel's
// result depends on its inputs alone.
#pragma once
#include <immintrin.h>

#include "numeric.h"

#define SRT_ISA_NS avx512
#define SRT_ISA_NAME "avx512"

namespace srt::SRT_ISA_NS {

using F = __m512;
using I = __m512i;
using B = __m512i;

// Register tiles (rows x 16-channel blocks) that fit 32 registers.
constexpr int kVectorRegisters = 32;
constexpr int kGemmRows = 6;
constexpr int kScoreRows = 4;      // query rows x 2 key vectors
constexpr int kRowsInPlace = 9;  // query rows of several tokens that read keys in place, at most
constexpr int kValueRegisters = 24;  // accumulators of the value product
constexpr int kRowsAhead = 16;  // how many keys ahead a few rows prefetch a pool of floats

SRT_INLINE F load(const float *p) { return _mm512_loadu_ps(p); }
SRT_INLINE F load(const f16 *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}
SRT_INLINE F load(const bf16 *p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
SRT_INLINE void store(float *p, F x) { _mm512_storeu_ps(p, x); }
SRT_INLINE void store(f16 *p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// x, kept in a register: the compiler would otherwise load an operand again for each use, and loads
// are what limits a kernel of multiplications first.
SRT_INLINE F in_register(F x) {
  asm("" : "+v"(x));
  return x;
}
// Also sums that grow in a loop: g++ keeps an array of them in registers, but stores each to the
// array's memory too, whenever it changes, and these stores take longer than the products.
SRT_INLINE I in_register(I x) {
  asm("" : "+v"(x));
  return x;
}

SRT_INLINE F set1(float x) { return _mm512_set1_ps(x); }
SRT_INLINE F zero() { return _mm512_setzero_ps(); }
SRT_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
SRT_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
SRT_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
SRT_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
SRT_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
SRT_INLINE F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
// min and max are the second operand if either is NaN.
SRT_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
SRT_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
SRT_INLINE F abs(F a) { return _mm512_abs_ps(a); }

// Lane i of the result is a's where i < n, else b's. n may be negative or above 16.
SRT_INLINE F first_lanes(int n, F a, F b) {
  const __mmask16 mask = n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
  return _mm512_mask_blend_ps(mask, b, a);
}

SRT_INLINE float sum(F x) { return _mm512_reduce_add_ps(x); }
SRT_INLINE float first(F x) { return _mm512_cvtss_f32(x); }
SRT_INLINE float largest(F x) { return _mm512_reduce_max_ps(x); }

// e^x within about 3 ulp; 0 below -87.3 and e^88 above 88, which keeps 2^n a normal float at every
// level. Cody-Waite reduction and a degree-6 polynomial.
SRT_INLINE F exp(F x) {
  x = _mm512_min_ps(set1(88.f), x);
  const __mmask16 alive = _mm512_cmp_ps_mask(x, set1(-87.3f), _CMP_GE_OQ);
  const F n = _mm512_roundscale_ps(mul(x, set1(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  F f = fnma(n, set1(0.693145752f), x);
  f = fnma(n, set1(1.42860677e-6f), f);
  F p = set1(1.f / 720);
  p = fma(p, f, set1(1.f / 120));
  p = fma(p, f, set1(1.f / 24));
  p = fma(p, f, set1(1.f / 6));
  p = fma(p, f, set1(.5f));
  p = fma(p, f, set1(1.f));
  p = fma(p, f, set1(1.f));
  return _mm512_maskz_scalef_ps(alive, p, n);
}

// 2^x for x <= 0, within about 3 ulp; 0 below -87.3. Cheaper than exp: the reduction is exact.
SRT_INLINE F exp2(F x) {
  const __mmask16 alive = _mm512_cmp_ps_mask(x, set1(-87.3f), _CMP_GE_OQ);
  const F n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), f = sub(x, n);
  F p = set1(1.540353e-4f);
  p = fma(p, f, set1(1.3333558e-3f));
  p = fma(p, f, set1(9.6181291e-3f));
  p = fma(p, f, set1(5.5504109e-2f));
  p = fma(p, f, set1(.24022651f));
  p = fma(p, f, set1(.69314718f));
  p = fma(p, f, set1(1.f));
  return _mm512_maskz_scalef_ps(alive, p, n);
}

// The largest |lane| of both; NaN if there is one (as integers, NaN is above infinity).
SRT_INLINE float largest_magnitude(F a, F b) {
  const __m512i x = _mm512_castps_si512(abs(a)), y = _mm512_castps_si512(abs(b));
  return float_from_bits(_mm512_reduce_max_epu32(_mm512_max_epu32(x, y)));
}

// ---- int8 dot products --------------------------------------------------------------------------

SRT_INLINE I izero() { return _mm512_setzero_si512(); }
SRT_INLINE F to_float(I x) { return _mm512_cvtepi32_ps(x); }
SRT_INLINE B load_bytes(const uint8_t *p) { return _mm512_loadu_si512(p); }
SRT_INLINE void store_bytes(uint8_t *p, B x) { _mm512_storeu_si512(p, x); }
SRT_INLINE B low_nibbles(B x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
SRT_INLINE B high_nibbles(B x) {
  return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
}
// acc[i] += sum over j < 4 of w[4i + j] * x[j], exactly, for the whole range of u8 x s8.
SRT_INLINE I dot4(I acc, B w, const int8_t *x) {
  int32_t quad;
  __builtin_memcpy(&quad, x, 4);
  return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(quad));
}

// Rounds to nearest-even int8 (|x| <= 127) and stores 16 bytes; returns the rounded lanes.
SRT_INLINE I store_int8(int8_t *p, F x) {
  const I rounded = _mm512_cvtps_epi32(x);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtepi32_epi8(rounded));
  return rounded;
}
SRT_INLINE I add(I a, I b) { return _mm512_add_epi32(a, b); }
SRT_INLINE int32_t sum(I x) { return _mm512_reduce_add_epi32(x); }

SRT_INLINE I iset1(int32_t x) { return _mm512_set1_epi32(x); }
template <int kBits>
SRT_INLINE I shift_left(I x) { return _mm512_slli_epi32(x, kBits); }
SRT_INLINE I sub(I a, I b) { return _mm512_sub_epi32(a, b); }

// ---- wider codes, as bytes ------------------------------------------------------------------------

// Codes of more than eight bits are high * 256 + low, both signed bytes: linear_split.inl. Those of 16
// bits are in a group of 32 the high bytes, then the low ones.
#define SRT_SPLIT_CODES

// Rounds to nearest-even codes (|x| <= 127 * 256) and stores half `half` of the group; returns the
// rounded lanes.
SRT_INLINE I store_int16(int16_t *group, int half, F x) {
  const I rounded = _mm512_cvtps_epi32(x);
  const I high = _mm512_srai_epi32(add(rounded, _mm512_set1_epi32(128)), 8);
  const I low = _mm512_sub_epi32(rounded, _mm512_slli_epi32(high, 8));
  __m128i *to = reinterpret_cast<__m128i *>(group) + half;
  _mm_storeu_si128(to, _mm512_cvtepi32_epi8(high));
  _mm_storeu_si128(to + 2, _mm512_cvtepi32_epi8(low));
  return rounded;
}

// Rounds a group, a and b of 16 each (|x| <= 119 * 256), to codes of twelve bits, stores them and
// returns them. Input i + 16 gets a multiple of 16, 16 * m. Input i gets 16 * n + m % 16, whose low
// byte t has both: 16 * t is the other's code, up to a multiple of 256. So the group is 32 high bytes
// and 16 bytes t; code i is 256 * high[i] + t[i], code i + 16 is 256 * high[i + 16] + 16 * t[i].
SRT_INLINE void store_int12(int16_t *group, F a, F b, I &first, I &second) {
  const F sixteenth = set1(1.f / 16);
  const I m = _mm512_cvtps_epi32(mul(b, sixteenth));
  const I rest = _mm512_and_si512(m, iset1(15));
  const I n = _mm512_cvtps_epi32(mul(sub(a, to_float(rest)), sixteenth));
  first = _mm512_or_si512(shift_left<4>(n), rest);
  second = shift_left<4>(m);
  const I t = _mm512_srai_epi32(shift_left<24>(first), 24);
  const I high = _mm512_srai_epi32(sub(first, t), 8);
  const I other = _mm512_srai_epi32(sub(second, shift_left<4>(t)), 8);
  __m128i *to = reinterpret_cast<__m128i *>(group);
  _mm_storeu_si128(to, _mm512_cvtepi32_epi8(high));
  _mm_storeu_si128(to + 1, _mm512_cvtepi32_epi8(other));
  _mm_storeu_si128(to + 2, _mm512_cvtepi32_epi8(t));
}

// x * 2^n, for a normal x and result, with n in the place of a float's exponent.
SRT_INLINE F scale_by(F x, int32_t exponent) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), iset1(exponent)));
}
// x, or 1 where it is 0.
SRT_INLINE F one_for_zero(F x) {
  return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, zero(), _CMP_EQ_OQ), set1(1.f));
}

// ---- products of words, for attention_words.inl ---------------------------------------------------

constexpr int kPairRows = 6, kPairVectors = 28;  // rows of a tile; its sums and columns
constexpr int kInPlaceRows = 9, kInPlaceTile = 6;  // rows that read the pool in place; at once
constexpr int kInPlaceVectors = 24;  // sums and columns of their tile

SRT_INLINE I load_pairs(const int16_t *p) { return _mm512_loadu_si512(p); }
SRT_INLINE void store_pairs(int16_t *p, I x) { _mm512_storeu_si512(p, x); }
// Two words, in every lane.
SRT_INLINE I set_pair(const int16_t *x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, 4);
  return _mm512_set1_epi32(pair);
}
// acc[i] += w[2i] * x[2i] + w[2i + 1] * x[2i + 1].
SRT_INLINE I add_pairs(I acc, I w, I x) { return _mm512_dpwssd_epi32(acc, w, x); }
// Sums on the way to that of all lanes.
using LaneSums = I;
SRT_INLINE LaneSums lane_sums(I x) { return x; }
// out[i] = the sum of a[i]: halves of vectors are added and put side by side until one is left.
SRT_INLINE I sum_lanes(const LaneSums (&a)[16]) {
  I b[8], c[4], d[2];
  for (int i = 0; i < 8; i++)
    b[i] = add(_mm512_unpacklo_epi32(a[i], a[i + 8]), _mm512_unpackhi_epi32(a[i], a[i + 8]));
  for (int i = 0; i < 4; i++)
    c[i] = add(_mm512_unpacklo_epi32(b[i], b[i + 4]), _mm512_unpackhi_epi32(b[i], b[i + 4]));
  for (int i = 0; i < 2; i++)
    d[i] = add(_mm512_shuffle_i32x4(c[i], c[i + 2], 0x88),
               _mm512_shuffle_i32x4(c[i], c[i + 2], 0xdd));
  const I e =
      add(_mm512_shuffle_i32x4(d[0], d[1], 0x88), _mm512_shuffle_i32x4(d[0], d[1], 0xdd));
  const I order = _mm512_setr_epi32(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15);
  return _mm512_permutexvar_epi32(order, e);
}
// The larger of each two, compared as unsigned integers: of what is not negative, NaN above all.
SRT_INLINE F larger_bits(F a, F b) {
  return _mm512_castsi512_ps(
      _mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
// a[i] beside b[i] for sixteen words each, in an order that `in_order` makes theirs.
SRT_INLINE I interleave(const int16_t *a, const int16_t *b) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a));
  const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(b));
  return _mm512_or_si512(_mm512_cvtepu16_epi32(x),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(y), 16));
}
SRT_INLINE F in_order(F x) { return x; }
// Rounds to nearest-even words and stores sixteen.
SRT_INLINE void store_words(int16_t *p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p),
                      _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
}

// ---- layout -------------------------------------------------------------------------------------

// out[i] = the sum of a[i]'s lanes, added as the tree l^2, l^1, l^4, l^8 over lane numbers l.
SRT_INLINE F sum_lanes(const F (&a)[16]) {
  F b[8], c[4], d[2];
  for (int i = 0; i < 8; i++)
    b[i] = add(_mm512_unpacklo_ps(a[i], a[i + 8]), _mm512_unpackhi_ps(a[i], a[i + 8]));
  for (int i = 0; i < 4; i++)
    c[i] = add(_mm512_unpacklo_ps(b[i], b[i + 4]), _mm512_unpackhi_ps(b[i], b[i + 4]));
  for (int i = 0; i < 2; i++)
    d[i] = add(_mm512_shuffle_f32x4(c[i], c[i + 2], 0x88),
               _mm512_shuffle_f32x4(c[i], c[i + 2], 0xdd));
  const F e =
      add(_mm512_shuffle_f32x4(d[0], d[1], 0x88), _mm512_shuffle_f32x4(d[0], d[1], 0xdd));
  const __m512i order = _mm512_setr_epi32(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15);
  return _mm512_permutexvar_ps(order, e);
}

// Transpose 16 rows of 16 floats in place.
SRT_INLINE void transpose(F (&r)[16]) {
  F t[16];
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++) {
    const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

SRT_INLINE void prefetch(const void *p) { _mm_prefetch(static_cast<const char *>(p), _MM_HINT_T0); }

}  // namespace srt::SRT_ISA_NS
