// Sixteen-lane vectors as plain arrays, for CPUs without the other levels. The interface and its
// contracts are simd_avx512.h's; isa_portable.cpp builds the kernels on it.
//
// No intrinsics: the loops have a fixed length and the compiler vectorises those that it can. fma
// rounds twice, so float results differ from the other levels' in the last places.
#pragma once
#include "numeric.h"

#define SRT_ISA_NS portable
#define SRT_ISA_NAME "portable"

namespace srt::SRT_ISA_NS {

struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};
struct B {
  uint8_t v[64];
};

// Register tiles: small, since a vector takes four 128-bit registers.
constexpr int kVectorRegisters = 4;
constexpr int kGemmRows = 2;
constexpr int kScoreRows = 1;
constexpr int kRowsInPlace = 0;        // see simd_avx512.h; not measured here
constexpr int kValueRegisters = 2;
constexpr int kRowsAhead = 32;  // see simd_avx512.h

template <typename Lane>
SRT_INLINE F each_lane(Lane lane) {
  F out;
  for (int i = 0; i < 16; i++) out.v[i] = lane(i);
  return out;
}

SRT_INLINE F load(const float *p) {
  F out;
  __builtin_memcpy(out.v, p, sizeof out.v);
  return out;
}
SRT_INLINE F load(const f16 *p) {
  return each_lane([&](int i) { return srt::to_float(p[i]); });
}
SRT_INLINE F load(const bf16 *p) {
  return each_lane([&](int i) { return srt::to_float(p[i]); });
}
SRT_INLINE void store(float *p, F x) { __builtin_memcpy(p, x.v, sizeof x.v); }
SRT_INLINE void store(f16 *p, F x) {
  for (int i = 0; i < 16; i++) p[i] = to_f16(x.v[i]);
}

SRT_INLINE F in_register(F x) { return x; }
SRT_INLINE I in_register(I x) { return x; }
SRT_INLINE F set1(float x) {
  return each_lane([&](int) { return x; });
}
SRT_INLINE F zero() { return set1(0.f); }
SRT_INLINE F add(F a, F b) {
  return each_lane([&](int i) { return a.v[i] + b.v[i]; });
}
SRT_INLINE F sub(F a, F b) {
  return each_lane([&](int i) { return a.v[i] - b.v[i]; });
}
SRT_INLINE F mul(F a, F b) {
  return each_lane([&](int i) { return a.v[i] * b.v[i]; });
}
SRT_INLINE F div(F a, F b) {
  return each_lane([&](int i) { return a.v[i] / b.v[i]; });
}
SRT_INLINE F fma(F a, F b, F c) {
  return each_lane([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
SRT_INLINE F fnma(F a, F b, F c) {
  return each_lane([&](int i) { return c.v[i] - a.v[i] * b.v[i]; });
}
// min and max are the second operand if either is NaN.
SRT_INLINE F min(F a, F b) {
  return each_lane([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
SRT_INLINE F max(F a, F b) {
  return each_lane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
SRT_INLINE F abs(F a) {
  return each_lane([&](int i) { return __builtin_fabsf(a.v[i]); });
}

// Lane i of the result is a's where i < n, else b's. n may be negative or above 16.
SRT_INLINE F first_lanes(int n, F a, F b) {
  return each_lane([&](int i) { return i < n ? a.v[i] : b.v[i]; });
}

// The sum of four adjacent lanes in sum_lanes' order.
SRT_INLINE float sum_quarter(const float *v) { return (v[0] + v[2]) + (v[1] + v[3]); }
SRT_INLINE float sum(F x) {
  const float *v = x.v;
  return (sum_quarter(v) + sum_quarter(v + 4)) + (sum_quarter(v + 8) + sum_quarter(v + 12));
}
SRT_INLINE float first(F x) { return x.v[0]; }
SRT_INLINE float largest(F x) {
  float out = x.v[0];
  for (int i = 1; i < 16; i++) out = out > x.v[i] ? out : x.v[i];
  return out;
}

// x + this, for |x| < 2^22, has x, rounded to nearest even, in its low bits.
constexpr float kRounder = 0x1.8p23f;
SRT_INLINE int32_t nearest_int(float x) {
  return static_cast<int32_t>(bits_of(x + kRounder) - bits_of(kRounder));
}

// e^x; 0 below -87.3, e^88 above 88. The same steps as in simd_avx512.h.
SRT_INLINE float exp_lane(float x) {
  const float floored = x >= -87.3f ? x : -87.3f;
  const float clamped = floored < 88.f ? floored : 88.f;
  const float n = (clamped * 1.44269504f + kRounder) - kRounder;
  const float f = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.f / 720;
  p = p * f + 1.f / 120;
  p = p * f + 1.f / 24;
  p = p * f + 1.f / 6;
  p = p * f + .5f;
  p = p * f + 1.f;
  p = p * f + 1.f;
  const float power = float_from_bits(static_cast<uint32_t>(nearest_int(n) + 127) << 23);
  return x >= -87.3f ? p * power : 0.f;
}
SRT_INLINE F exp(F x) {
  return each_lane([&](int i) { return exp_lane(x.v[i]); });
}

// 2^x for x <= 0, within about 3 ulp; 0 below -87.3.
SRT_INLINE F exp2(F x) {
  return each_lane([&](int i) {
    const float lane = x.v[i];
    if (!(lane >= -87.3f)) return 0.f;
    const int n = nearest_int(lane);
    const float f = lane - static_cast<float>(n);
    float p = 1.540353e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + .24022651f;
    p = p * f + .69314718f;
    p = p * f + 1.f;
    return p * float_from_bits(static_cast<uint32_t>(n + 127) << 23);
  });
}

// The largest |lane| of both; NaN if there is one (as integers, NaN is above infinity).
SRT_INLINE float largest_magnitude(F a, F b) {
  uint32_t most = 0;
  for (int i = 0; i < 16; i++) {
    const uint32_t x = bits_of(a.v[i]) & 0x7fffffff, y = bits_of(b.v[i]) & 0x7fffffff;
    most = x > most ? x : most;
    most = y > most ? y : most;
  }
  return float_from_bits(most);
}

// ---- int8 dot products --------------------------------------------------------------------------

SRT_INLINE I izero() { return {}; }
SRT_INLINE F to_float(I x) {
  return each_lane([&](int i) { return static_cast<float>(x.v[i]); });
}
SRT_INLINE B load_bytes(const uint8_t *p) {
  B out;
  __builtin_memcpy(out.v, p, sizeof out.v);
  return out;
}
SRT_INLINE void store_bytes(uint8_t *p, B x) { __builtin_memcpy(p, x.v, sizeof x.v); }
SRT_INLINE B low_nibbles(B x) {
  for (uint8_t &byte : x.v) byte &= 15;
  return x;
}
SRT_INLINE B high_nibbles(B x) {
  for (uint8_t &byte : x.v) byte >>= 4;
  return x;
}
// acc[i] += sum over j < 4 of w[4i + j] * x[j], exactly, for the whole range of u8 x s8.
SRT_INLINE I dot4(I acc, B w, const int8_t *x) {
  for (int i = 0; i < 16; i++) {
    const uint8_t *q = w.v + 4 * i;
    acc.v[i] += q[0] * x[0] + q[1] * x[1] + q[2] * x[2] + q[3] * x[3];
  }
  return acc;
}

// The same for codes of 16 bits.
SRT_INLINE I dot4(I acc, B w, const int16_t *x) {
  for (int i = 0; i < 16; i++) {
    const uint8_t *q = w.v + 4 * i;
    acc.v[i] += q[0] * x[0] + q[1] * x[1] + q[2] * x[2] + q[3] * x[3];
  }
  return acc;
}

SRT_INLINE I nearest(F x) {
  I rounded;
  for (int i = 0; i < 16; i++) rounded.v[i] = nearest_int(x.v[i]);
  return rounded;
}
// Rounds to nearest-even int8 (|x| <= 127) and stores 16 bytes; returns the rounded lanes.
SRT_INLINE I store_int8(int8_t *p, F x) {
  const I rounded = nearest(x);
  for (int i = 0; i < 16; i++) p[i] = static_cast<int8_t>(rounded.v[i]);
  return rounded;
}
// The same for codes of 16 bits (|x| <= 127 * 256), in order, as half `half` of a group of 32.
SRT_INLINE I store_int16(int16_t *group, int half, F x) {
  const I rounded = nearest(x);
  for (int i = 0; i < 16; i++) group[16 * half + i] = static_cast<int16_t>(rounded.v[i]);
  return rounded;
}
SRT_INLINE I add(I a, I b) {
  for (int i = 0; i < 16; i++) a.v[i] += b.v[i];
  return a;
}
SRT_INLINE I sub(I a, I b) {
  for (int i = 0; i < 16; i++) a.v[i] -= b.v[i];
  return a;
}
SRT_INLINE I iset1(int32_t x) {
  I out;
  for (int32_t &lane : out.v) lane = x;
  return out;
}
template <int kBits>
SRT_INLINE I shift_left(I x) {
  for (int32_t &lane : x.v) lane = static_cast<int32_t>(static_cast<uint32_t>(lane) << kBits);
  return x;
}
SRT_INLINE int32_t sum(I x) {
  int32_t out = 0;
  for (int32_t lane : x.v) out += lane;
  return out;
}

// ---- products of words, for attention_words.inl ---------------------------------------------------

constexpr int kPairRows = 2, kPairVectors = 4;  // rows of a tile; its sums and columns
constexpr int kInPlaceRows = 8, kInPlaceTile = 4;  // rows that read the pool in place; at once
constexpr int kInPlaceVectors = 4;  // sums and columns of their tile

// Two words in each lane, the first in its low half.
SRT_INLINE I load_pairs(const int16_t *p) {
  I out;
  __builtin_memcpy(out.v, p, sizeof out.v);
  return out;
}
SRT_INLINE void store_pairs(int16_t *p, I x) { __builtin_memcpy(p, x.v, sizeof x.v); }
// Two words, in every lane.
SRT_INLINE I set_pair(const int16_t *x) {
  I out;
  for (int32_t &lane : out.v) __builtin_memcpy(&lane, x, 4);
  return out;
}
// acc[i] += w[2i] * x[2i] + w[2i + 1] * x[2i + 1]; wraps around, as the other levels' sums do.
SRT_INLINE I add_pairs(I acc, I w, I x) {
  for (int i = 0; i < 16; i++) {
    const int32_t low = static_cast<int16_t>(w.v[i]) * static_cast<int16_t>(x.v[i]);
    const int32_t high = (w.v[i] >> 16) * (x.v[i] >> 16);
    acc.v[i] = static_cast<int32_t>(static_cast<uint32_t>(acc.v[i]) + static_cast<uint32_t>(low) +
                                    static_cast<uint32_t>(high));
  }
  return acc;
}
// Sums on the way to that of all lanes.
using LaneSums = I;
SRT_INLINE LaneSums lane_sums(I x) { return x; }
// out[i] = the sum of a[i].
SRT_INLINE I sum_lanes(const LaneSums (&a)[16]) {
  I out;
  for (int i = 0; i < 16; i++) {
    uint32_t sum = 0;
    for (int32_t lane : a[i].v) sum += static_cast<uint32_t>(lane);
    out.v[i] = static_cast<int32_t>(sum);
  }
  return out;
}
// The larger of each two, compared as unsigned integers: of what is not negative, NaN above all.
SRT_INLINE F larger_bits(F a, F b) {
  return each_lane([&](int i) { return bits_of(a.v[i]) > bits_of(b.v[i]) ? a.v[i] : b.v[i]; });
}
// a[i] beside b[i] for sixteen words each, in an order that `in_order` makes theirs.
SRT_INLINE I interleave(const int16_t *a, const int16_t *b) {
  int16_t out[32];
  for (int i = 0; i < 16; i++) out[2 * i] = a[i], out[2 * i + 1] = b[i];
  return load_pairs(out);
}
SRT_INLINE F in_order(F x) { return x; }
// Rounds to nearest-even words and stores sixteen.
SRT_INLINE void store_words(int16_t *p, F x) {
  const I rounded = nearest(x);
  for (int i = 0; i < 16; i++) p[i] = static_cast<int16_t>(rounded.v[i]);
}

// ---- layout -------------------------------------------------------------------------------------

// out[i] = the sum of a[i]'s lanes, added as the tree l^2, l^1, l^4, l^8 over lane numbers l.
SRT_INLINE F sum_lanes(const F (&a)[16]) {
  return each_lane([&](int i) { return sum(a[i]); });
}

// Transpose 16 rows of 16 floats in place.
SRT_INLINE void transpose(F (&r)[16]) {
  for (int i = 0; i < 16; i++) {
    for (int j = 0; j < i; j++) {
      const float lower = r[i].v[j];
      r[i].v[j] = r[j].v[i];
      r[j].v[i] = lower;
    }
  }
}

SRT_INLINE void prefetch(const void *p) { __builtin_prefetch(p); }

}  // namespace srt::SRT_ISA_NS
