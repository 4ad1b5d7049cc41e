// Packs weights into channel blocks, and reads single rows back.
//
// A source row is decoded group by group into codes with float scales (exactly what the file
// holds), and encoded into its channel of the packed block. Block layouts of the sources:
// ggml-org/ggml, src/ggml-common.h.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "error.h"
#include "kernels.h"

namespace srt {

namespace {

// One row's group of 32: w = d * code + m in each half of 16.
struct Group {
  uint8_t code[kGroup];
  float d[2], m[2];
};

template <class T>
T read_as(const uint8_t *at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float half_at(const uint8_t *at) { return to_float(read_as<f16>(at)); }

struct SourceSizes {
  int elements, bytes;  // of a block
};

SourceSizes sizes_of_source(int32_t source) {
  switch (source) {
    case SRT_SRC_F32: return {1, 4};
    case SRT_SRC_F16:
    case SRT_SRC_BF16: return {1, 2};
    case SRT_SRC_Q4_0: return {32, 18};
    case SRT_SRC_Q4_1: return {32, 20};
    case SRT_SRC_Q8_0: return {32, 34};
    case SRT_SRC_Q4_K: return {256, 144};
    case SRT_SRC_Q6_K: return {256, 210};
    default: return {0, 0};
  }
}

bool is_float_source(int32_t source) { return sizes_of_source(source).elements == 1; }

// The one format that keeps a quantised source exactly; -1 for float sources.
int32_t format_of_source(int32_t source) {
  switch (source) {
    case SRT_SRC_Q4_0:
    case SRT_SRC_Q4_1: return SRT_Q4;
    case SRT_SRC_Q8_0: return SRT_Q8;
    case SRT_SRC_Q4_K: return SRT_Q4K;
    case SRT_SRC_Q6_K: return SRT_Q6;
    default: return -1;
  }
}

void set_scales(Group &group, float d, float m) {
  group.d[0] = group.d[1] = d;
  group.m[0] = group.m[1] = m;
}

// ---- decoding -----------------------------------------------------------------------------------

void split_nibbles(const uint8_t *bytes, Group &group) {
  for (int i = 0; i < 16; i++) {
    group.code[i] = bytes[i] & 15;
    group.code[i + 16] = bytes[i] >> 4;
  }
}

void decode_q4_0(const uint8_t *block, Group &group) {
  const float d = half_at(block);
  set_scales(group, d, -8.f * d);
  split_nibbles(block + 2, group);
}

void decode_q4_1(const uint8_t *block, Group &group) {
  set_scales(group, half_at(block), half_at(block + 2));
  split_nibbles(block + 4, group);
}

void decode_q8_0(const uint8_t *block, Group &group) {
  const float d = half_at(block);
  set_scales(group, d, -128.f * d);
  for (int i = 0; i < kGroup; i++) group.code[i] = block[2 + i] ^ 0x80;
}

// Group g of 8 in a super-block: six-bit scale and minimum, packed in twelve bytes.
void decode_q4_k(const uint8_t *block, int g, Group &group) {
  const uint8_t *packed = block + 4;
  int scale, minimum;
  if (g < 4) {
    scale = packed[g] & 63;
    minimum = packed[g + 4] & 63;
  } else {
    scale = (packed[g + 4] & 15) | ((packed[g - 4] >> 6) << 4);
    minimum = (packed[g + 4] >> 4) | ((packed[g] >> 6) << 4);
  }
  set_scales(group, half_at(block) * float(scale), -(half_at(block + 2) * float(minimum)));
  const uint8_t *codes = block + 16 + g / 2 * 32;
  for (int i = 0; i < kGroup; i++) group.code[i] = g % 2 ? codes[i] >> 4 : codes[i] & 15;
}

// Group g of 8: four low bits and two high bits apart, a scale for every 16.
void decode_q6_k(const uint8_t *block, int g, Group &group) {
  const int part = g / 4, quarter = g % 4;
  const uint8_t *low = block + part * 64 + quarter % 2 * 32, *high = block + 128 + part * 32;
  const auto *scales = reinterpret_cast<const int8_t *>(block + 192) + part * 8 + quarter * 2;
  const float d = half_at(block + 208);
  for (int half = 0; half < 2; half++) {
    group.d[half] = d * scales[half];
    group.m[half] = -32.f * group.d[half];
  }
  for (int i = 0; i < kGroup; i++) {
    const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
    group.code[i] = uint8_t(nibble | ((high[i] >> (2 * quarter)) & 3) << 4);
  }
}

void decode(int32_t source, const uint8_t *row, int g, Group &group) {
  const SourceSizes sizes = sizes_of_source(source);
  const int per_block = sizes.elements / kGroup;
  const uint8_t *block = row + size_t(g / per_block) * sizes.bytes;
  switch (source) {
    case SRT_SRC_Q4_0: return decode_q4_0(block, group);
    case SRT_SRC_Q4_1: return decode_q4_1(block, group);
    case SRT_SRC_Q8_0: return decode_q8_0(block, group);
    case SRT_SRC_Q4_K: return decode_q4_k(block, g % per_block, group);
    case SRT_SRC_Q6_K: return decode_q6_k(block, g % per_block, group);
  }
}

float float_at(int32_t source, const uint8_t *row, int i) {
  if (source == SRT_SRC_F32) return read_as<float>(row + size_t(i) * 4);
  if (source == SRT_SRC_F16) return half_at(row + size_t(i) * 2);
  return to_float(read_as<bf16>(row + size_t(i) * 2));
}

float value_of(int32_t source, const Group &group, int i) {
  const float d = group.d[i / 16];
  // As the file means it, and as ggml computes it: one rounding for symmetric codes.
  if (source == SRT_SRC_Q4_0) return d * float(group.code[i] - 8);
  if (source == SRT_SRC_Q8_0) return d * float(group.code[i] - 128);
  if (source == SRT_SRC_Q6_K) return d * float(group.code[i] - 32);
  return d * float(group.code[i]) + group.m[i / 16];
}

// ---- quantising float sources -------------------------------------------------------------------

uint8_t nearest_code(float x, float step, int low, int high) {
  const float code = step != 0 ? std::nearbyint(x / step) : 0.f;
  return uint8_t(std::max(float(low), std::min(float(high), code)) - float(low));
}

// Symmetric, as Q8_0.
void quantize_8(const float *x, Group &group) {
  float most = 0;
  for (int i = 0; i < kGroup; i++) most = std::max(most, std::fabs(x[i]));
  const float d = to_float(to_f16(most / 127.f));
  set_scales(group, d, -128.f * d);
  for (int i = 0; i < kGroup; i++) group.code[i] = nearest_code(x[i], d, -128, 127);
}

// Between the smallest and the largest, as Q4_1.
void quantize_4(const float *x, Group &group) {
  const auto [low, high] = std::minmax_element(x, x + kGroup);
  const float d = to_float(to_f16((*high - *low) / 15.f)), m = to_float(to_f16(*low));
  set_scales(group, d, m);
  for (int i = 0; i < kGroup; i++) group.code[i] = nearest_code(x[i] - m, d, 0, 15);
}

// ---- encoding -----------------------------------------------------------------------------------

uint32_t rotated_left(uint32_t x, int by) { return by ? x << by | x >> (32 - by) : x; }

void add_tile_code(uint8_t *codes, int code_bytes, int c, int i, uint8_t code) {
  const TilePlace place = tile_place(code_bytes, c, i);
  const uint32_t word = read_as<uint32_t>(codes + 4 * place.word) | rotated_left(code, place.shift);
  std::memcpy(codes + 4 * place.word, &word, sizeof word);
}

// linear_split.inl adds to the exponents of scales, which multiplies only normal ones. So codes of
// four bits are 0 where the scale is 0, and a group whose scale is not finite is not a number.
void make_scale_normal(Group &group) {
  const float d = group.d[0];
  if (d != 0 && std::isfinite(d)) return;
  std::fill_n(group.code, kGroup, uint8_t(0));
  if (d != 0) set_scales(group, 0.f, NAN);
}

// Group g of channel c of a packed block.
void encode(int32_t format, const Group &group, int g, int groups, int c, uint8_t *block) {
  const FormatSizes sizes = sizes_of(format);
  uint8_t *codes = block + size_t(g) * sizes.code_bytes;
  for (int i = 0; i < kGroup; i++) {
    const int quad = i / 4, at = 4 * c + i % 4;
    if (is_tiled(format))
      add_tile_code(codes, sizes.code_bytes, c, i, group.code[i]);
    else if (sizes.code_bytes == 256)
      codes[quad % 4 * 64 + at] |= uint8_t(group.code[i] << (quad < 4 ? 0 : 4));
    else
      codes[quad * 64 + at] = group.code[i];
  }
  uint8_t *scales = block + size_t(groups) * sizes.code_bytes + size_t(g) * sizes.scale_bytes;
  auto *halves = reinterpret_cast<f16 *>(scales);
  auto *floats = reinterpret_cast<float *>(scales);
  switch (untiled(format)) {
    case SRT_Q4: halves[c] = to_f16(group.d[0]), halves[16 + c] = to_f16(group.m[0]); break;
    case SRT_Q4K: floats[c] = group.d[0], floats[16 + c] = group.m[0]; break;
    case SRT_Q8: halves[c] = to_f16(group.d[0]); break;
    case SRT_Q6: floats[c] = group.d[0], floats[16 + c] = group.d[1]; break;
  }
}

void pack_quantized_row(int32_t source, const uint8_t *row, int k, int32_t format, int c,
                        uint8_t *block) {
  const int groups = k / kGroup;
  for (int g = 0; g < groups; g++) {
    Group group;
    if (is_float_source(source)) {
      float x[kGroup];
      for (int i = 0; i < kGroup; i++) x[i] = float_at(source, row, g * kGroup + i);
      untiled(format) == SRT_Q8 ? quantize_8(x, group) : quantize_4(x, group);
    } else {
      decode(source, row, g, group);
    }
    if (sizes_of(format).code_bytes == 256) make_scale_normal(group);
    encode(format, group, g, groups, c, block);
  }
}

void pack_float_row(int32_t source, const uint8_t *row, int k, int32_t format, int c,
                    uint8_t *block) {
  if (format != SRT_F32) {  // the same 16 bits
    auto *out = reinterpret_cast<uint16_t *>(block);
    for (int i = 0; i < k; i++) out[size_t(i) * kBlock + c] = read_as<uint16_t>(row + size_t(i) * 2);
    return;
  }
  auto *out = reinterpret_cast<float *>(block);
  if (is_float_source(source)) {
    for (int i = 0; i < k; i++) out[size_t(i) * kBlock + c] = float_at(source, row, i);
    return;
  }
  for (int g = 0; g < k / kGroup; g++) {
    Group group;
    decode(source, row, g, group);
    for (int i = 0; i < kGroup; i++)
      out[size_t(g * kGroup + i) * kBlock + c] = value_of(source, group, i);
  }
}

bool can_pack(int32_t source, int32_t format) {
  if (format < SRT_F32 || format > SRT_Q6_TILES) return false;
  format = untiled(format);
  if (format == SRT_F32 || format == format_of_source(source)) return true;
  if (source == SRT_SRC_F16 && format == SRT_F16) return true;
  if (source == SRT_SRC_BF16 && format == SRT_BF16) return true;
  return is_float_source(source) && (format == SRT_Q8 || format == SRT_Q4);
}

// ---- reading back -------------------------------------------------------------------------------

float code_at(int32_t format, const uint8_t *codes, int c, int i) {
  const int code_bytes = sizes_of(format).code_bytes;
  if (is_tiled(format)) {
    const TilePlace place = tile_place(code_bytes, c, i);
    const uint32_t word = read_as<uint32_t>(codes + 4 * place.word);
    return rotated_left(word, (32 - place.shift) % 32) & (code_bytes == 256 ? 15 : 255);
  }
  const int quad = i / 4, at = 4 * c + i % 4;
  if (code_bytes == 512) return codes[quad * 64 + at];
  const uint8_t both = codes[quad % 4 * 64 + at];
  return quad < 4 ? both & 15 : both >> 4;
}

void unpack_group(int32_t format, const uint8_t *codes, const uint8_t *scales, int c, float *out) {
  const auto *halves = reinterpret_cast<const f16 *>(scales);
  const auto *floats = reinterpret_cast<const float *>(scales);
  for (int i = 0; i < kGroup; i++) {
    const float code = code_at(format, codes, c, i);
    switch (untiled(format)) {
      case SRT_Q4: out[i] = to_float(halves[c]) * code + to_float(halves[16 + c]); break;
      case SRT_Q4K: out[i] = floats[c] * code + floats[16 + c]; break;
      case SRT_Q8: out[i] = to_float(halves[c]) * (code - 128.f); break;
      case SRT_Q6: out[i] = floats[i / 16 * 16 + c] * (code - 32.f); break;
    }
  }
}

}  // namespace

}  // namespace srt

size_t srt_packed_bytes(int32_t format, int32_t n, int32_t k) {
  return size_t(srt::blocks_of(n)) * srt::channel_block_bytes(format, k);
}

int32_t srt_pack(int32_t source, const void *src, int32_t n, int32_t k, const int32_t *row_order,
                 int32_t format, void *out) {
  using namespace srt;
  const SourceSizes sizes = sizes_of_source(source);
  if (sizes.elements == 0) return set_error("source encoding %d is not supported", source);
  if (!can_pack(source, format)) return set_error("source %d cannot become %d", source, format);
  if (k % sizes.elements != 0 || (is_quantized(format) && k % kGroup != 0))
    return set_error("%d inputs are not whole blocks", k);
  const size_t row_bytes = size_t(k / sizes.elements) * sizes.bytes;
  const size_t block_bytes = channel_block_bytes(format, k);
  auto *blocks = static_cast<uint8_t *>(out);
  std::memset(blocks, 0, srt_packed_bytes(format, n, k));
  for (int row = 0; row < n; row++) {
    const int from = row_order ? row_order[row] : row;
    const uint8_t *at = static_cast<const uint8_t *>(src) + size_t(from) * row_bytes;
    uint8_t *block = blocks + size_t(row / kBlock) * block_bytes;
    if (is_quantized(format))
      pack_quantized_row(source, at, k, format, row % kBlock, block);
    else
      pack_float_row(source, at, k, format, row % kBlock, block);
  }
  return 0;
}

int32_t srt_unpack_row(const srt_matrix *w, int32_t row, float *out) {
  using namespace srt;
  if (row < 0 || row >= w->n) return set_error("row %d of %d", row, w->n);
  const FormatSizes sizes = sizes_of(w->format);
  const auto *block = static_cast<const uint8_t *>(w->data) +
                      size_t(row / kBlock) * channel_block_bytes(w->format, w->k);
  const int c = row % kBlock, groups = w->k / kGroup;
  if (is_quantized(w->format)) {
    const uint8_t *scales = block + size_t(groups) * sizes.code_bytes;
    for (int g = 0; g < groups; g++)
      unpack_group(w->format, block + size_t(g) * sizes.code_bytes,
                   scales + size_t(g) * sizes.scale_bytes, c, out + g * kGroup);
    return 0;
  }
  for (int i = 0; i < w->k; i++) {
    const uint8_t *at = block + (size_t(i) * kBlock + c) * sizes.element_bytes;
    out[i] = w->format == SRT_F32   ? read_as<float>(at)
             : w->format == SRT_F16 ? half_at(at)
                                    : to_float(read_as<bf16>(at));
  }
  return 0;
}
