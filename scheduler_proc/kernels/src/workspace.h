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

// Quantised activations of some rows, and where linear layers find them.
class ActivationBuffer {
 public:
  // `halves`: whether groups of 16 are wanted, which SRT_Q6 needs; `tiles`: whether there are
  // weights in tiles.
  void need(size_t rows, size_t k, bool halves, bool tiles, int64_t &growths) {
    if (tiles) tiles_.need(tiled_elements(rows, k), growths);
    q_.need(rows * k, growths);
    scale_.need(rows * k / kGroup, growths);
    sums_.need(rows * k / kGroup, growths);
    if (halves) halves_.need(rows * k / kGroup * 2, growths);
  }
  // Quantise row `row` of k inputs.
  void quantize(const Kernels &kernels, const float *x, size_t row, size_t k) {
    const size_t groups = k / kGroup;
    kernels.quantize(x, static_cast<int>(k), q_.get() + row * k, scale_.get() + row * groups,
                     sums_.get() + row * groups,
                     halves_.get() ? halves_.get() + row * groups * 2 : nullptr);
  }
  // Make `count` rows of k inputs, of `rows` in all, the tile that begins at row `first`.
  void tile(const Kernels &kernels, const float *const *x, int first, int count, int rows, int k) {
    kernels.tile(x, count, k, tile_columns(rows), tiles_.get() + size_t(first) * k);
  }
  Activations view(const float *x, int rows) const {
    return {x,           q_.get(),         scale_.get(), sums_.get(),
            halves_.get(), tiles_.get(), tile_columns(rows)};
  }

 private:
  Buffer<int8_t> q_;
  Buffer<float> scale_, sums_, halves_;
  Buffer<bf16> tiles_;
};

}  // namespace srt
