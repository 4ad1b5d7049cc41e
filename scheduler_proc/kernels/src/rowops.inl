// Operations on one token's row: normalisation, quantisation, rotation, the KV write.
#include "kernels.h"

namespace srt::SRT_ISA_NS {

// y = x / sqrt(mean(x^2) + eps) * weight. k is a multiple of 16; y may be x.
static void rms_norm(const float *x, const float *weight, int k, float eps, float *y) {
  F squares = zero();
  for (int i = 0; i < k; i += 16) {
    const F v = load(x + i);
    squares = fma(v, v, squares);
  }
  const F inverse = set1(1.f / std::sqrt(sum(squares) / k + eps));
  for (int i = 0; i < k; i += 16) store(y + i, mul(mul(load(x + i), inverse), load(weight + i)));
}

// Groups without a larger magnitude become zeros. Of bytes: dividing the largest code by less may
// overflow. Of wider codes: their scales times those of weights are normal floats, so that adding
// exponents multiplies; a group with a magnitude above kLargestWide is not a number.
template <class Code>
constexpr float kSmallest = sizeof(Code) == 1 ? 1e-36f : 1e-26f;
constexpr float kLargestWide = 1e33f;

SRT_INLINE void store_group(int8_t *group, F a, F b, I &first, I &second) {
  first = store_int8(group, a);
  second = store_int8(group + 16, b);
}
SRT_INLINE void store_group(int16_t *group, F a, F b, I &first, I &second) {
  first = store_int16(group, 0, a);
  second = store_int16(group, 1, b);
}
#ifdef SRT_SPLIT_CODES
SRT_INLINE void store_group(Int12 *group, F a, F b, I &first, I &second) {
  store_int12(&group->bits, a, b, first, second);
}
#endif

// The step between codes, and what makes the floats of a group multiples of it.
struct Step {
  float size, inverse;
};
template <class Code>
SRT_INLINE Step step_of(float most) {
  constexpr float largest_code = kLargestCode<Code>;
  Step step{most / largest_code, most > kSmallest<Code> ? largest_code / most : 0.f};
  if (sizeof(Code) == 1) return step;
  if (!(most <= kLargestWide)) return {float_from_bits(0x7fc00000), 0.f};
  if (step.inverse == 0) return step;
  // The next larger float of three significant bits, of which ScaleParts are made.
  step.size = float_from_bits((bits_of(step.size) + 0x1fffff) & 0xffe00000);
  return {step.size, 1 / step.size};
}

// Symmetric codes in groups of 32, of eight bits as ggml's Q8_1: an outlier spoils only its own
// group. `halves` may be null. A NaN makes its group's scale NaN.
template <class Code>
static void quantize(const float *x, int k, Code *q, float *scale, float *sums, int32_t *halves,
                     [[maybe_unused]] ScaleParts *parts) {
  for (int g = 0; g < k / kGroup; g++) {
    F a = load(x + g * kGroup), b = load(x + g * kGroup + 16);
    const Step step = step_of<Code>(largest_magnitude(a, b));
    if (step.inverse == 0) a = b = zero();  // what is not finite has no code
    const F by = set1(step.inverse);
    I first, second;
    store_group(q + g * kGroup, mul(a, by), mul(b, by), first, second);
    scale[g] = step.size;
    sums[g] = step.size * static_cast<float>(sum(add(first, second)));
    if (sizeof(Code) > 1) parts[g] = parts_of(step.inverse == 0 ? 1.f : step.size);
    if (halves == nullptr) continue;
    halves[2 * g] = sum(first);
    halves[2 * g + 1] = sum(second);
  }
}

#ifdef SRT_SPLIT_CODES
constexpr auto kQuantizeTwelve = quantize<Int12>;
#else
constexpr auto kQuantizeTwelve = static_cast<decltype(Kernels::quantize_twelve)>(nullptr);
#endif

// Rotate pairs (i, i + head_dim/2) of every head; cos_sin is [head_dim/2] cosines, then sines.
static void rope(float *x, const float *cos_sin, int heads, int head_dim) {
  const int half = head_dim / 2;
  for (int h = 0; h < heads; h++, x += head_dim) {
    int i = 0;
    for (; i + 16 <= half; i += 16) {
      const F a = load(x + i), b = load(x + half + i);
      const F c = load(cos_sin + i), s = load(cos_sin + half + i);
      store(x + i, fnma(b, s, mul(a, c)));
      store(x + half + i, fma(a, s, mul(b, c)));
    }
    for (; i < half; i++) {
      const float a = x[i], b = x[half + i], c = cos_sin[i], s = cos_sin[half + i];
      x[i] = a * c - b * s;
      x[half + i] = b * c + a * s;
    }
  }
}

static void scale(float *x, int k, float by) {
  for (int i = 0; i < k; i += 16) store(x + i, mul(load(x + i), set1(by)));
}

static void add_weighted(const float *const *rows, const float *weights, int count, int k,
                         float scale, float *x) {
  for (int i = 0; i < k; i += 16) {
    F sum = zero();
    for (int r = 0; r < count; r++) sum = fma(set1(weights[r]), load(rows[r] + i), sum);
    store(x + i, fma(sum, set1(scale), load(x + i)));
  }
}

// Values too large for half precision become its largest number: an infinity in the pool would
// spoil every token that sees it.
static void store_kv(const float *x, int n, int kv_format, void *out) {
  for (int i = 0; i < n; i += 16) {
    if (kv_format == SRT_F16)
      store(static_cast<f16 *>(out) + i, min(set1(65504.f), max(set1(-65504.f), load(x + i))));
    else
      store(static_cast<float *>(out) + i, load(x + i));
  }
}

// A checksum of `bytes` (a multiple of 512), at the speed of memory.
static uint64_t read_bytes(const void *data, size_t bytes) {
  [[maybe_unused]] static const int8_t kOnes[4] = {1, 1, 1, 1};
  const auto *at = static_cast<const uint8_t *>(data);
  I sums[8];
  repeat<8>([&](auto i) { sums[i] = izero(); });
  for (const uint8_t *end = at + bytes; at < end; at += 512)
    repeat<8>([&](auto i) { sums[i] = dot4(sums[i], load_bytes(at + 64 * i), kOnes); });
  uint64_t total = 0;
  for (const I &part : sums) total += static_cast<uint32_t>(sum(part));
  return total;
}

}  // namespace srt::SRT_ISA_NS
