// Memory that only grows: the engine's buffers, so that a steady state allocates nothing.
#pragma once
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
  Codes<Code> view() const {
    return {q_.get(), scale_.get(), sums_.get(), halves_.get(), parts_.get()};
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
  void need(size_t rows, size_t k, const Wanted &wanted, int64_t &growths) {
    if (wanted.tiles) tiles_.need(tiled_elements(rows, k), growths);
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
  // Write `count` rows of k inputs, out of `rows`, as the tile that begins at row `first`.
  void tile(const Kernels &kernels, const float *const *x, int first, int count, int rows, int k) {
    kernels.tile(x, count, k, tile_columns(rows), tiles_.get() + size_t(first) * k);
  }
  Activations view(const float *x, int rows) const {
    return {x, bytes_.view(), twelve_.view(), words_.view(), tiles_.get(), tile_columns(rows)};
  }

 private:
  CodeBuffer<int8_t> bytes_;
  CodeBuffer<Int12> twelve_;
  CodeBuffer<int16_t> words_;
  Buffer<bf16> tiles_;
};

}  // namespace srt
