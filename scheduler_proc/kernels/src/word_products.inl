// Codes of 16 bits for attention_words.inl, each row with a scale of its own, and their products in
// exact sums of 32 bits.
#include <algorithm>

#include "kernels.h"

namespace srt::SRT_ISA_NS {

// The largest sum of magnitudes of codes whose products with a pool's codes fit 32 bits, less what
// rounding may add.
constexpr float kLargestSum = static_cast<float>(0x7fffffff / kLargestWord - kLargestHead / 2);
static_assert(kChunk <= kLargestHead);

// What to multiply with for codes of up to `largest`, given the largest magnitude.
SRT_INLINE float code_factor(float most, float largest) {
  return most > kSmallest<int16_t> ? largest / most : 0.f;
}
// For codes that meet a pool's: as large as these allow, given the sum of magnitudes too.
SRT_INLINE float summed_factor(float most, float total) {
  const float by = code_factor(most, 32767);
  return by * total > kLargestSum ? kLargestSum / total : by;
}

// The largest magnitude of x [n], n a multiple of 16; NaN if there is one.
SRT_INLINE float largest_of(const float *x, int n) {
  F most = zero();
  for (int i = 0; i < n; i += 16) most = larger_bits(most, abs(load(x + i)));
  return largest_magnitude(most, most);
}
SRT_INLINE void store_codes(const float *x, int n, float by, int16_t *codes) {
  for (int i = 0; i < n; i += 16) store_words(codes + i, mul(load(x + i), set1(by)));
}

// Codes of a query; returns their scale, NaN if the query or its sum of magnitudes is not finite.
static float query_words(const float *x, int n, int16_t *codes) {
  F total = zero();
  for (int i = 0; i < n; i += 16) total = add(total, abs(load(x + i)));
  const float most = largest_of(x, n), by = summed_factor(most, sum(total));
  store_codes(x, n, by, codes);
  if (by > 0) return 1 / by;
  return most > kSmallest<int16_t> ? __builtin_nanf("") : most;  // too large for floats, or NaN
}

// One token's keys or values into the pool, and their scales. Values that halves cannot hold become
// the largest half, so that an infinity does not spoil every token that sees it.
static void store_kv_words(const float *x, int heads, int head_dim, int16_t *out, float *scales) {
  float head[kLargestHead];
  for (int h = 0; h < heads; h++, x += head_dim, out += head_dim) {
    for (int i = 0; i < head_dim; i += 16)
      store(head + i, min(set1(65504.f), max(set1(-65504.f), load(x + i))));
    const float most = largest_of(head, head_dim);
    store_codes(head, head_dim, code_factor(most, kLargestWord), out);
    scales[h] = most / kLargestWord;
  }
}

// out[r][c] = the sum over pairs p of a[r][2p] b[p][2c] + a[r][2p + 1] b[p][2c + 1], for R rows and
// 16 C columns; lda and ldb in words. Passes sums to keep(row, vector of columns, sums).
template <int R, int C, class Keep>
SRT_INLINE void pair_tile(const int16_t *a, size_t lda, const int16_t *b, size_t ldb, int pairs,
                          Keep keep) {
  I sums[R][C];
  repeat<R>([&](auto r) { repeat<C>([&](auto c) { sums[r][c] = izero(); }); });
#pragma GCC unroll 1
  for (int p = 0; p < pairs; p++, a += 2, b += ldb) {
    I w[C];
    repeat<C>([&](auto c) { w[c] = load_pairs(b + 32 * c); });
    repeat<R>([&](auto r) {
      const I by = set_pair(a + r * lda);
      repeat<C>([&](auto c) { sums[r][c] = in_register(add_pairs(sums[r][c], w[c], by)); });
    });
  }
  repeat<R>([&](auto r) { repeat<C>([&](auto c) { keep(r, c, to_float(sums[r][c])); }); });
}

// R rows and all `vectors` of columns, as many at once as fit the registers.
template <int R, class Keep>
SRT_FLATTEN void pair_rows(const int16_t *a, size_t lda, const int16_t *b, size_t ldb, int pairs,
                           int vectors, Keep keep) {
  constexpr int C = std::max(1, std::min(4, kPairVectors / (R + 1)));
  int column = 0;
  for (; column + C <= vectors; column += C)
    pair_tile<R, C>(a, lda, b + 32 * column, ldb, pairs,
                    [&](int r, int c, F sums) { keep(r, column + c, sums); });
  for (; column < vectors; column++)
    pair_tile<R, 1>(a, lda, b + 32 * column, ldb, pairs,
                    [&](int r, int, F sums) { keep(r, column, sums); });
}

// All rows [first, last): keep(row, vector of columns, sums).
template <class Keep>
SRT_INLINE void pair_product(int first, int last, const int16_t *a, size_t lda, const int16_t *b,
                             size_t ldb, int pairs, int vectors, Keep keep) {
  int row = first;
  const auto rows = [&](auto count) {
    pair_rows<count.value>(a + row * lda, lda, b, ldb, pairs, vectors,
                           [&](int r, int c, F sums) { keep(row + r, c, sums); });
    row += count.value;
  };
  while (row + kPairRows <= last) rows(std::integral_constant<int, kPairRows>());
  const int rest = last - row;
  repeat<kPairRows - 1>([&](auto i) {
    if (rest == i + 1) rows(std::integral_constant<int, i + 1>());
  });
}

}  // namespace srt::SRT_ISA_NS
