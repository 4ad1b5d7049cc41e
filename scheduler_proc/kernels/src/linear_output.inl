// What is done with the sums of a linear layer, at every level: bias, SiLU, residual.
#include "formats.h"
#include "kernels.h"

namespace srt::SRT_ISA_NS {

SRT_INLINE F silu(F x) { return div(x, add(set1(1.f), exp(sub(zero(), x)))); }

template <int R, int N>
SRT_INLINE void write_tile(const LinearTask &task, int pair, size_t row, F (&acc)[R][N]) {
  if constexpr (N == 2) {
    if (task.output == Output::kSiluMul) {
      float *y = task.y + row * task.ldy + size_t(pair) * kBlock;
      repeat<R>([&](auto r) { store(y + r * task.ldy, mul(silu(acc[r][0]), acc[r][1])); });
      return;
    }
  }
  float *y = task.y + row * task.ldy + size_t(pair) * 2 * kBlock;
  const bool onto = task.output == Output::kAdd;
  repeat<R>([&](auto r) {
    repeat<N>([&](auto n) {
      float *to = y + r * task.ldy + n * kBlock;
      store(to, onto ? fma(acc[r][n], set1(task.scale), load(to)) : acc[r][n]);
    });
  });
}

template <int R, int N>
SRT_INLINE void add_bias(const LinearTask &task, int pair, F (&acc)[R][N]) {
  const bool gated = is_gated(task.output);
  repeat<N>([&](auto n) {
    const float *bias = task.w[gated ? n : 0]->bias;
    if (bias == nullptr) return;
    const F added = load(bias + size_t(gated ? pair : pair * 2 + n) * kBlock);
    repeat<R>([&](auto r) { acc[r][n] = add(acc[r][n], added); });
  });
}

}  // namespace srt::SRT_ISA_NS
