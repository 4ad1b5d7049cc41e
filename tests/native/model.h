// For the driver: a small random model in any weight formats, and engines that run it.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "checks.h"

namespace driver {

constexpr int kLayers = 3, kHidden = 64, kHeads = 6, kKvHeads = 2, kHeadDim = 32;
constexpr int kExperts = 5, kUsedExperts = 2, kExpertWidth = 64;
constexpr int kIntermediate = 96, kVocab = 199, kSlots = 4096, kWindow = 150;

struct Free {
  void operator()(void *data) const { std::free(data); }
};
using Packed = std::unique_ptr<uint8_t, Free>;

// A half between 2^-8 and 2^-5, positive.
inline uint16_t small_half() { return static_cast<uint16_t>(0x1c00 + below(0xc00)); }

// Rows in a source encoding, as in a model file: random codes, small scales.
inline std::vector<uint8_t> source_rows(int32_t source, int n, int k) {
  if (source == SRT_SRC_F32) {
    std::vector<uint8_t> bytes(size_t(n) * k * 4);
    std::memcpy(bytes.data(), random_floats(size_t(n) * k, -.2f, .2f).data(), bytes.size());
    return bytes;
  }
  struct Sizes {
    int source, elements, bytes;
    std::vector<int> halves;  // their places in a block
  };
  static const Sizes all[] = {{SRT_SRC_F16, 1, 2, {0}},        {SRT_SRC_BF16, 1, 2, {}},
                              {SRT_SRC_Q4_0, 32, 18, {0}},     {SRT_SRC_Q4_1, 32, 20, {0, 2}},
                              {SRT_SRC_Q8_0, 32, 34, {0}},     {SRT_SRC_Q4_K, 256, 144, {0, 2}},
                              {SRT_SRC_Q6_K, 256, 210, {208}}};
  const Sizes &sizes = *std::find_if(std::begin(all), std::end(all),
                                     [&](const Sizes &s) { return s.source == source; });
  std::vector<uint8_t> bytes(size_t(n) * k / sizes.elements * sizes.bytes);
  for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(rng());
  for (size_t block = 0; block < bytes.size(); block += sizes.bytes) {
    for (int at : sizes.halves) {
      const uint16_t half = small_half();
      std::memcpy(&bytes[block + at], &half, 2);
    }
    if (source == SRT_SRC_BF16) bytes[block + 1] = one_of<uint8_t>({0x3d, 0xbd});
  }
  return bytes;
}

inline Packed packed_space(int32_t format, int n, int k) {
  return Packed(static_cast<uint8_t *>(std::aligned_alloc(64, srt_packed_bytes(format, n, k))));
}

inline Packed pack(int32_t source, const std::vector<uint8_t> &rows, int n, int k, int32_t format,
            const int32_t *order = nullptr) {
  Packed out = packed_space(format, n, k);
  check(srt_pack(source, rows.data(), n, k, order, format, out.get()) == 0, "srt_pack");
  return out;
}

// Q4K and Q6 with fewer inputs than the 256 that their sources need; for the layout see formats.h.
inline Packed made_up(int32_t format, int n, int k) {
  Packed out = packed_space(format, n, k);
  const int groups = k / 32, code_bytes = format == SRT_Q4K || format == SRT_Q4K_TILES ? 256 : 512;
  const size_t block_bytes = size_t(groups) * (code_bytes + 128);
  for (uint8_t *block = out.get(), *end = block + (n + 15) / 16 * block_bytes; block < end;
       block += block_bytes) {
    for (int i = 0; i < groups * code_bytes; i++)
      block[i] = static_cast<uint8_t>(format == SRT_Q6 ? below(64) : below(256));
    const std::vector<float> scales = random_floats(size_t(groups) * 32, -.01f, .01f);
    std::memcpy(block + groups * code_bytes, scales.data(), scales.size() * 4);
  }
  return out;
}

struct Matrices {
  std::vector<Packed> packed;
  std::vector<std::vector<float>> floats;

  const float *keep(std::vector<float> x) {
    floats.push_back(std::move(x));
    return floats.back().data();
  }
  srt_matrix make(int32_t format, int n, int k, bool bias = false) {
    const bool has_source = format != SRT_Q4K && format != SRT_Q6 && format != SRT_Q4K_TILES &&
                            format != SRT_Q6_TILES;
    const int32_t source = format == SRT_F16    ? SRT_SRC_F16
                           : format == SRT_BF16 ? SRT_SRC_BF16
                           : format == SRT_Q4   ? one_of<int32_t>({SRT_SRC_Q4_1, SRT_SRC_F32})
                           : format == SRT_Q8   ? one_of<int32_t>({SRT_SRC_Q8_0, SRT_SRC_F32})
                                                : SRT_SRC_F32;
    packed.push_back(has_source ? pack(source, source_rows(source, n, k), n, k, format)
                                : made_up(format, n, k));
    return {format, n, k, packed.back().get(), bias ? keep(random_floats(n)) : nullptr};
  }
};

// Formats of q, k, v, o, gate, up, down, embed, head.
using Formats = std::array<int32_t, 9>;
// Bits of the activations of each input.
using Widths = std::array<int32_t, SRT_NUM_INPUTS>;

struct Model {
  Matrices matrices;
  std::array<srt_layer, kLayers> layers{};
  std::array<srt_matrix, kExperts> gate, up, down;
  srt_experts experts{};
  srt_model c{};

  // Layer 0 has biases; layers 1 and 2 have norms of q and k, and a window; layer 2 is a mixture.
  Model(const Formats &f, int32_t kv_format, const Widths &activation_bits) {
    const int q = kHeads * kHeadDim, kv = kKvHeads * kHeadDim;
    const auto norm = [this](int n) { return matrices.keep(random_floats(n, .5f, 1.5f)); };
    for (int i = 0; i < kLayers; i++) {
      const auto make = [&](int at, int n, int k) { return matrices.make(f[at], n, k, i == 0); };
      layers[i] = {norm(kHidden), norm(kHidden), i ? norm(q) : nullptr,
                   i ? norm(kv) : nullptr, make(0, q, kHidden), make(1, kv, kHidden),
                   make(2, kv, kHidden), make(3, kHidden, q), make(4, kIntermediate, kHidden),
                   make(5, kIntermediate, kHidden), make(6, kHidden, kIntermediate),
                   nullptr, nullptr, nullptr, i ? kWindow : 0};
    }
    add_experts(f);
    layers.back().experts = &experts;
    std::vector<float> freqs(kHeadDim / 2);
    for (int i = 0; i < kHeadDim / 2; i++) freqs[i] = std::pow(1e4f, -2.f * i / kHeadDim);
    c = {kLayers, kHidden, kHeads, kKvHeads, kHeadDim, kIntermediate, kVocab, kSlots, kv_format,
         {}, 1e-5f, 1 / std::sqrt(float(kHeadDim)), 1.25f, .5f, .75f, one_of({0, 1}),
         matrices.keep(freqs), norm(kHidden),
         matrices.make(f[7], kVocab, kHidden), matrices.make(f[8], kVocab, kHidden), nullptr};
    std::copy(activation_bits.begin(), activation_bits.end(), c.activation_bits);
  }

  void add_experts(const Formats &f) {
    for (int e = 0; e < kExperts; e++) {
      gate[e] = matrices.make(f[4], kExpertWidth, kHidden);
      up[e] = matrices.make(f[5], kExpertWidth, kHidden, true);
      down[e] = matrices.make(f[6], kHidden, kExpertWidth);
    }
    experts = {kExperts, kUsedExperts, kExpertWidth, {one_of({0, 1}), one_of({0, 1}), 1, 1, 1, 2},
               matrices.make(SRT_F32, kExperts, kHidden), matrices.keep(random_floats(kExperts)),
               matrices.keep(random_floats(kExperts)), gate.data(), up.data(), down.data(),
               matrices.make(f[6], kIntermediate, kHidden), matrices.make(f[6], kIntermediate, kHidden),
               matrices.make(f[5], kHidden, kIntermediate), matrices.keep(random_floats(kHidden))};
  }
};

inline size_t pool_bytes(int32_t kv_format, int head_dim) {
  const size_t head = kv_format == SRT_F32   ? 4 * head_dim
                      : kv_format == SRT_F16 ? 2 * head_dim
                                             : 2 * head_dim + 4;
  return (size_t(kSlots) * kKvHeads * head + 63) / 64 * 64;
}

// An engine with KV pools of its own.
struct Instance {
  std::vector<std::vector<uint8_t>> pools;
  std::array<srt_layer, kLayers> layers;
  srt_experts experts;
  srt_model model;
  std::unique_ptr<srt_engine, void (*)(srt_engine *)> engine{nullptr, srt_engine_destroy};

  Instance(const Model &of, int threads, const char *isa) : layers(of.layers), experts(of.experts), model(of.c) {
    layers.back().experts = &experts;
    pools.assign(2 * kLayers, std::vector<uint8_t>(pool_bytes(model.kv_format, kHeadDim)));
    for (int i = 0; i < kLayers; i++) {
      layers[i].k_pool = pools[2 * i].data();
      layers[i].v_pool = pools[2 * i + 1].data();
    }
    model.layers = layers.data();
    engine.reset(srt_engine_create(&model, threads, isa));
    check(engine != nullptr, "srt_engine_create");
  }
};

}  // namespace driver
