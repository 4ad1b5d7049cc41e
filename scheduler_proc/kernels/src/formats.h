// Packed weight layouts, shared by the packer (pack.cpp) and the linear kernels (linear.inl).
//
// Output channels come in blocks of 16, one per vector lane. A quantised channel block is
//   codes  [groups of 32 k][code_bytes]   then   scales [groups][scale_bytes],   padded to 64 bytes.
// Codes of one group are quads: byte 4c + i of quad j holds channel c's weight at k = 4j + i, as a
// u8 for one dot-product instruction. Four-bit formats keep quad j in the low and quad j + 4 in the
// high nibbles. A float channel block is [k][16].
//
// Formats in tiles have the same codes and scales in another order within a group, for dequantising
// one channel's 32 inputs at once; `tile_place` says where a code is.
#pragma once
#include <cstddef>

#include "srt_kernels.h"

namespace srt {

constexpr int kBlock = 16;  // output channels of a block
constexpr int kGroup = 32;  // inputs that share a scale (two halves of 16 in SRT_Q6)

struct FormatSizes {
  int code_bytes, scale_bytes;  // per channel block and group; float formats: 0
  int element_bytes;            // float formats: of one weight
};

constexpr bool is_tiled(int32_t format) { return format >= SRT_Q4_TILES; }
// The format of the same values that is not in tiles.
constexpr int32_t untiled(int32_t format) {
  return is_tiled(format) ? format - (SRT_Q4_TILES - SRT_Q4) : format;
}

constexpr FormatSizes sizes_of(int32_t format) {
  switch (untiled(format)) {
    case SRT_F32: return {0, 0, 4};
    case SRT_F16:
    case SRT_BF16: return {0, 0, 2};
    case SRT_Q4: return {256, 64, 0};
    case SRT_Q4K: return {256, 128, 0};
    case SRT_Q8: return {512, 32, 0};
    case SRT_Q6: return {512, 128, 0};
    default: return {0, 0, 0};
  }
}

constexpr bool is_quantized(int32_t format) { return format >= SRT_Q4; }

constexpr int blocks_of(int n) { return (n + kBlock - 1) / kBlock; }
constexpr int padded(int n) { return blocks_of(n) * kBlock; }

// Where a code of a group in tiles is: its 32-bit word, and by how many bits it is rotated left
// there. Fields of four bits are one bit higher than nibbles, where a word permutation takes its
// index from; fields of eight bits end at the top of a float's mantissa, or eight bits below.
struct TilePlace {
  int word, shift;
};
constexpr TilePlace tile_place(int code_bytes, int c, int i) {
  return code_bytes == 256 ? TilePlace{c / 4 * 16 + i / 2, (16 * (i % 2) + 4 * (c % 4) + 1) % 32}
                           : TilePlace{c / 2 * 16 + i / 2, 16 * (c % 2) + 8 * (i % 2) + 7};
}

// Bytes of one channel block over k inputs.
constexpr size_t channel_block_bytes(int32_t format, int k) {
  const FormatSizes sizes = sizes_of(format);
  const size_t bytes = is_quantized(format)
                           ? size_t(k / kGroup) * (sizes.code_bytes + sizes.scale_bytes)
                           : size_t(k) * kBlock * sizes.element_bytes;
  return (bytes + 63) / 64 * 64;
}

}  // namespace srt
