// Products with codes of more than eight bits where the level multiplies bytes only: a sum for the
// high bytes, shifted, and in the same registers one for the low ones. Two sets of sums would not fit
// them.
//
// Codes of twelve bits share low bytes: that of input i is also that of input i + 16, where it counts
// 16 times (store_int12). A format of four bits has just these two weights in one byte, as
// w[i] + 16 * w[i + 16]. So a group of 32 inputs takes 12 products of four bytes and not 16, and their
// sum is the exact one of the codes.
namespace srt::SRT_ISA_NS {

// Where the low bytes of a group are.
constexpr int kLowBytes = kGroup;

template <int R, int N>
SRT_INLINE void next_byte(I (&dot)[R][N]) {
  repeat<R>([&](auto r) { repeat<N>([&](auto n) { dot[r][n] = shift_left<8>(dot[r][n]); }); });
}

// `bytes` are the codes of the first row, `stride` those of a row.
template <class Format, int R, int N>
SRT_INLINE void add_group(const uint8_t *const (&codes)[N], const int16_t *x, size_t k,
                          I (&dot)[R][N]) {
  const auto *bytes = reinterpret_cast<const int8_t *>(x);
  add_products<Format>(codes, bytes, k * sizeof *x, dot);
  next_byte(dot);
  add_products<Format>(codes, bytes + kLowBytes, k * sizeof *x, dot);
}

template <class Format, int R, int N>
SRT_INLINE void add_group(const uint8_t *const (&codes)[N], const Int12 *x, size_t k,
                          I (&dot)[R][N]) {
  const auto *bytes = reinterpret_cast<const int8_t *>(x);
  add_products<Format>(codes, bytes, k * sizeof *x, dot);
  next_byte(dot);
  repeat<4>([&](auto j) {
    B both[N];
    repeat<N>([&](auto n) { both[n] = load_bytes(codes[n] + Format::kPacked + 64 * j); });
    repeat<R>([&](auto r) {
      const int8_t *row = bytes + r * k * sizeof *x + kLowBytes;
      repeat<N>([&](auto n) { dot[r][n] = dot4(dot[r][n], both[n], row + 4 * j); });
    });
  });
}

SRT_INLINE I half_products(const uint8_t *codes, const int16_t *x, int half) {
  const auto *bytes = reinterpret_cast<const int8_t *>(x);
  const I high = shift_left<8>(half_products(codes, bytes, half));
  return add(high, half_products(codes, bytes + kLowBytes, half));
}

// What blocks of four-bit codes are unpacked to: codes, packed codes for Int12, four multiples of
// the scales (ScaleParts) and the offsets.
template <class Format, class Code>
struct WideSplit : Wide<Format> {
  static constexpr bool kIsSplit = true;
  static constexpr int kPacked = 512;
  static constexpr int kCode = std::is_same_v<Code, Int12> ? 512 + 256 : 512;
  static constexpr int kScale = 5 * 64;

  SRT_INLINE void scales(const uint8_t *p, F &, F &m) {
    m = load(reinterpret_cast<const float *>(p) + 64);
  }
  // The scale times that of a group of activations, both exact.
  SRT_INLINE F scaled(const uint8_t *p, ScaleParts by) {
    return scale_by(load(reinterpret_cast<const float *>(p) + 16 * by.quarter), by.exponent);
  }
  SRT_INLINE void store_scales(uint8_t *p, F d, F m) {
    auto *to = reinterpret_cast<float *>(p);
    // The codes of a scale of 0 are 0, and adding to the exponent of 0 would not multiply it.
    d = one_for_zero(d);
    repeat<4>([&](auto i) { store(to + 16 * i, mul(d, set1(1 + .25f * i))); });
    store(to + 64, m);
  }
  SRT_INLINE void store_packed(uint8_t *to, const uint8_t *from) {
    if constexpr (kCode > 512)
      repeat<4>([&](auto j) { store_bytes(to + kPacked + 64 * j, load_bytes(from + 64 * j)); });
  }
};

}  // namespace srt::SRT_ISA_NS
