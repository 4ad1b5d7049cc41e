// Storage types and scalar conversions that every file of the engine shares.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#define SRT_INLINE static inline __attribute__((always_inline))
// Inlines everything that the function calls, lambdas too.
#define SRT_FLATTEN static __attribute__((flatten))

namespace srt {

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

template <class Body, int... I>
SRT_INLINE void repeat_each([[maybe_unused]] Body body, std::integer_sequence<int, I...>) {
  (body(std::integral_constant<int, I>()), ...);
}

// body(0), ..., body(N - 1) one after the other, N copies of the code: register tiles must not
// depend on whether the compiler chooses to unroll a loop.
template <int N, class Body>
SRT_INLINE void repeat(Body body) {
  repeat_each(body, std::make_integer_sequence<int, N>());
}

SRT_INLINE float float_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

SRT_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

SRT_INLINE float to_float(bf16 x) { return float_from_bits(static_cast<uint32_t>(x.bits) << 16); }

SRT_INLINE float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  if (magnitude >= 0x0f800000) return float_from_bits(sign | magnitude | 0x7f800000);  // inf, NaN
  // Multiplying by 2^112 moves the exponent's bias from 15 to 127, subnormals included.
  return float_from_bits(sign | bits_of(float_from_bits(magnitude) * 0x1p112f));
}

// Rounds to nearest even; overflow becomes infinity.
SRT_INLINE f16 to_f16(float x) {
  const uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (magnitude < 0x38800000) {  // subnormal half: let float addition do the rounding
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (bits_of(shifted) - bits_of(0.5f)))};
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
}

}  // namespace srt
