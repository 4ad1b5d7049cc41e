// Memory that only grows: the engine's buffers, so that a steady state allocates nothing.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "kernels.h"

namespace srt {

// A 64-byte-aligned array; what it held is lost when it grows.
template <class T>
class Buffer {
 public:
  // At least `count` elements. Adds to `growths` if memory was needed.
  T *need(size_t count, int64_t &growths) {
    if (count > capacity_) {
      // Some room to spare: batches of nearly the same size come one after another.
      capacity_ = count + count / 4;
      data_.reset();
      const size_t bytes = (capacity_ * sizeof(T) + 63) / 64 * 64;
      data_.reset(static_cast<T *>(std::aligned_alloc(64, bytes)));
      if (!data_) throw std::bad_alloc();
      growths++;
    }
    return data_.get();
  }
  T *get() const { return data_.get(); }
  // Element `index` of an array that may not be there: null then.
  T *at(size_t index) const { return data_ ? data_.get() + index : nullptr; }

 private:
  struct Free {
    void operator()(T *data) const { std::free(data); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t capacity_ = 0;
};

// Codes of some rows' activations.
template <class Code>
class CodeBuffer {
 public:
  void need(size_t rows, size_t k, bool halves, int64_t &growths) {
    q_.need(rows * k, growths);
    scale_.need(rows * k / kGroup, growths);
    sums_.need(rows * k / kGroup, growths);
    if (halves) halves_.need(rows * k / kGroup * 2, growths);
    if (sizeof(Code) > 1) parts_.need(rows * k / kGroup, growths);
  }
  // Quantise row `row` of k inputs, by the kernel for this kind of codes.
  template <class Quantize>
  void quantize(Quantize kernel, const float *x, size_t row, size_t k) {
    const size_t groups = k / kGroup;
    kernel(x, static_cast<int>(k), q_.get() + row * k, scale_.get() + row * groups,
           sums_.get() + row * groups,
           halves_.get() ? halves_.get() + row * groups * 2 : nullptr,
           parts_.get() ? parts_.get() + row * groups : nullptr);
  }
  // Make row `row` a copy of another buffer's row `source`.
  void copy(const CodeBuffer &from, size_t source, size_t row, size_t k) {
    const size_t groups = k / kGroup;
    const auto each = [&](auto &to, const auto &of, size_t count) {
      if (to.get()) std::copy_n(of.get() + source * count, count, to.get() + row * count);
    };
    each(q_, from.q_, k);
    each(scale_, from.scale_, groups);
    each(sums_, from.sums_, groups);
    each(halves_, from.halves_, 2 * groups);
    each(parts_, from.parts_, groups);
  }
  // From row `first` on, of k inputs.
  Codes<Code> view(size_t first = 0, size_t k = 0) const {
    const size_t codes = first * k, groups = codes / kGroup;
    return {q_.at(codes), scale_.at(groups), sums_.at(groups), halves_.at(2 * groups),
            parts_.at(groups)};
  }

 private:
  Buffer<Code> q_;
  Buffer<float> scale_, sums_;
  Buffer<int32_t> halves_;
  Buffer<ScaleParts> parts_;
};

// Which forms of their activations linear layers need, besides floats.
struct Wanted {
  bool bytes = false, twelve = false, words = false;
  bool halves = false;  // sums of 16, which SRT_Q8 and SRT_Q6 need
  bool tiles = false;

  bool codes() const { return bytes || twelve || words; }
  void add(const Wanted &other) {
    bytes = bytes || other.bytes;
    twelve = twelve || other.twelve;
    words = words || other.words;
    halves = halves || other.halves;
    tiles = tiles || other.tiles;
  }
  void add(int32_t format, Width width) {
    if (is_tiled(format)) {
      tiles = true;
    } else if (is_quantized(format)) {
      bytes = bytes || width == Width::kBytes;
      twelve = twelve || width == Width::kTwelve;
      words = words || width == Width::kWords;
    }
    halves = halves || format == SRT_Q8 || format == SRT_Q6;
  }
};

// Activations of some rows, and where linear layers find them.
class ActivationBuffer {
 public:
  // `tile_rows` are those of all tiles, where the rows are not one list.
  void need(size_t rows, size_t k, const Wanted &wanted, int64_t &growths, size_t tile_rows = 0) {
    if (wanted.tiles) tiles_.need(std::max(tiled_elements(rows, k), tile_rows * k), growths);
    if (wanted.bytes) bytes_.need(rows, k, wanted.halves, growths);
    if (wanted.twelve) twelve_.need(rows, k, wanted.halves, growths);
    if (wanted.words) words_.need(rows, k, wanted.halves, growths);
  }
  // Quantise row `row` of k inputs.
  void quantize(const Kernels &kernels, const Wanted &wanted, const float *x, size_t row,
                size_t k) {
    if (wanted.bytes) bytes_.quantize(kernels.quantize, x, row, k);
    if (wanted.twelve) twelve_.quantize(kernels.quantize_twelve, x, row, k);
    if (wanted.words) words_.quantize(kernels.quantize_words, x, row, k);
  }
  // Make row `row` of k inputs a copy of another buffer's row `source`.
  void copy(const Wanted &wanted, const ActivationBuffer &from, size_t source, size_t row,
            size_t k) {
    if (wanted.bytes) bytes_.copy(from.bytes_, source, row, k);
    if (wanted.twelve) twelve_.copy(from.twelve_, source, row, k);
    if (wanted.words) words_.copy(from.words_, source, row, k);
  }
  // Write `count` rows of k inputs, out of `rows`, as the tile that begins at row `first`.
  void tile(const Kernels &kernels, const float *const *x, size_t first, int count, int rows,
            int k) {
    kernels.tile(x, count, k, tile_columns(rows), tiles_.get() + first * k);
  }
  // `rows` rows of k inputs from row `first` on, or from row `first_tile` in tiles.
  Activations view(const float *x, int rows, size_t k = 0, size_t first = 0,
                   size_t first_tile = 0) const {
    return {x ? x + first * k : x, bytes_.view(first, k), twelve_.view(first, k),
            words_.view(first, k), tiles_.at(first_tile * k), tile_columns(rows)};
  }

 private:
  CodeBuffer<int8_t> bytes_;
  CodeBuffer<Int12> twelve_;
  CodeBuffer<int16_t> words_;
  Buffer<bf16> tiles_;
};

}  // namespace srt
