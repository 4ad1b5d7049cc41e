// Vectors of numbers on their way into tiles: bfloat16, in the orders that operands have.
#pragma once
#include "simd_avx512.h"

#include "tile_registers.h"

namespace srt::amx {

using namespace avx512;

constexpr int kOnes = 0x3f803f80;  // two ones in bfloat16

// Rounds to nearest even: a's lanes, then b's.
SRT_INLINE I to_bf16(F a, F b) {
  const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
  return reinterpret_cast<const I &>(both);
}

// Element i of a beside element i of b.
SRT_INLINE I interleave(I both) {
  alignas(64) static constexpr uint16_t order[32] = {
      0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(order), both);
}

// Sixteen rows of 32 as the columns of a tile.
SRT_INLINE void store_transposed(char *to, F (&rows)[16]) {
  transpose(rows);
  for (int i = 0; i < 16; i++) _mm512_storeu_ps(to + 64 * i, rows[i]);
}

// 2^x to within a factor of 1 +- 1.1e-4, which is then rounded to bfloat16; 0 for x far below 0.
SRT_INLINE F rough_exp2(F x) {
  const F n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), f = sub(x, n);
  F p = set1(.05500893f);
  p = fma(p, f, set1(.24221096f));
  p = fma(p, f, set1(.69328293f));
  p = fma(p, f, set1(1.f));
  return _mm512_scalef_ps(p, n);
}

}  // namespace srt::amx
