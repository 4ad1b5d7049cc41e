// Drives the whole C ABI of the native kernels, as a program that a sanitizer can watch:
// `driver STEPS` runs that many random steps per model, at every level of this CPU.
// tests/scheduler_proc/test_kernel_sanitizers.py builds and runs it.
//
// Every array has exactly the size that the header asks for, and lies on the heap: what is read or
// written past it is an error under ASan. Results of three threads must equal those of one.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../scheduler_proc/kernels/src/srt_kernels.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

// ---- counting allocations -----------------------------------------------------------------------

std::atomic<long> allocations{0};

#if defined(__GLIBC__) && !defined(SANITIZED)
#define COUNTS_ALLOCATIONS
extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_memalign(size_t, size_t);
void *malloc(size_t bytes) noexcept { return allocations++, __libc_malloc(bytes); }
void *calloc(size_t n, size_t bytes) noexcept { return allocations++, __libc_calloc(n, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return allocations++, __libc_memalign(alignment, bytes);
}
}
#endif

namespace {

// ---- checks and random numbers ------------------------------------------------------------------

std::string doing;  // for messages

void check(bool ok, const char *what) {
  if (ok) return;
  std::fprintf(stderr, "%s: %s (last error: %s)\n", doing.c_str(), what, srt_last_error());
  std::_Exit(1);
}

void check_refused(bool refused, const char *why) {
  check(refused, why);
  check(std::strlen(srt_last_error()) > 0, "an error has a text");
}

std::mt19937 rng(7);

int below(int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); }
bool one_in(int n) { return below(n) == 0; }
float between(float low, float high) {
  return low + (high - low) * static_cast<float>(rng() >> 8) * 0x1p-24f;
}
template <class T>
T one_of(std::initializer_list<T> values) {
  return values.begin()[below(static_cast<int>(values.size()))];
}

std::vector<float> random_floats(size_t n, float low = -1, float high = 1) {
  std::vector<float> x(n);
  for (float &value : x) value = between(low, high);
  return x;
}

template <class T>
bool same_bits(const std::vector<T> &a, const std::vector<T> &b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// ---- the model ----------------------------------------------------------------------------------

constexpr int kLayers = 2, kHidden = 64, kHeads = 6, kKvHeads = 2, kHeadDim = 32;
constexpr int kIntermediate = 96, kVocab = 199, kSlots = 4096, kWindow = 150;
constexpr int kMaskWords = (kVocab + 31) / 32;
constexpr int kMaxFormat = SRT_Q6;

struct Free {
  void operator()(void *data) const { std::free(data); }
};
using Packed = std::unique_ptr<uint8_t, Free>;

// A half between 2^-8 and 2^-5, positive.
uint16_t small_half() { return static_cast<uint16_t>(0x1c00 + below(0xc00)); }

// Rows of a source encoding, as in a model file: any codes, small scales.
std::vector<uint8_t> source_rows(int32_t source, int n, int k) {
  if (source == SRT_SRC_F32) {
    std::vector<uint8_t> bytes(size_t(n) * k * 4);
    std::memcpy(bytes.data(), random_floats(size_t(n) * k, -.2f, .2f).data(), bytes.size());
    return bytes;
  }
  struct Sizes {
    int source, elements, bytes;
    std::vector<int> halves;  // where in a block
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

Packed packed_space(int32_t format, int n, int k) {
  return Packed(static_cast<uint8_t *>(std::aligned_alloc(64, srt_packed_bytes(format, n, k))));
}

Packed pack(int32_t source, const std::vector<uint8_t> &rows, int n, int k, int32_t format,
            const int32_t *order = nullptr) {
  Packed out = packed_space(format, n, k);
  check(srt_pack(source, rows.data(), n, k, order, format, out.get()) == 0, "srt_pack");
  return out;
}

// Q4K and Q6, whose sources want 256 inputs, over fewer: the layout is formats.h's.
Packed made_up(int32_t format, int n, int k) {
  Packed out = packed_space(format, n, k);
  const int groups = k / 32, code_bytes = format == SRT_Q6 ? 512 : 256;
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
    const bool has_source = format != SRT_Q4K && format != SRT_Q6;
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

struct Model {
  Matrices matrices;
  std::array<srt_layer, kLayers> layers{};
  srt_model c{};

  // Layer 0 has biases; layer 1 has head norms and a window.
  Model(const Formats &f, int32_t kv_format) {
    const int q = kHeads * kHeadDim, kv = kKvHeads * kHeadDim;
    const auto norm = [this](int n) { return matrices.keep(random_floats(n, .5f, 1.5f)); };
    for (int i = 0; i < kLayers; i++) {
      const auto make = [&](int at, int n, int k) { return matrices.make(f[at], n, k, i == 0); };
      layers[i] = {norm(kHidden), norm(kHidden), i ? norm(kHeadDim) : nullptr,
                   i ? norm(kHeadDim) : nullptr, make(0, q, kHidden), make(1, kv, kHidden),
                   make(2, kv, kHidden), make(3, kHidden, q), make(4, kIntermediate, kHidden),
                   make(5, kIntermediate, kHidden), make(6, kHidden, kIntermediate),
                   nullptr, nullptr, i ? kWindow : 0};
    }
    std::vector<float> freqs(kHeadDim / 2);
    for (int i = 0; i < kHeadDim / 2; i++) freqs[i] = std::pow(1e4f, -2.f * i / kHeadDim);
    c = {kLayers, kHidden, kHeads, kKvHeads, kHeadDim, kIntermediate, kVocab, kSlots, kv_format,
         1e-5f, 1 / std::sqrt(float(kHeadDim)), matrices.keep(freqs), norm(kHidden),
         matrices.make(f[7], kVocab, kHidden), matrices.make(f[8], kVocab, kHidden), nullptr};
  }
};

size_t pool_bytes(int32_t kv_format, int head_dim) {
  return size_t(kSlots) * kKvHeads * head_dim * (kv_format == SRT_F16 ? 2 : 4);
}

// An engine with KV pools of its own.
struct Instance {
  std::vector<std::vector<uint8_t>> pools;
  std::array<srt_layer, kLayers> layers;
  srt_model model;
  std::unique_ptr<srt_engine, void (*)(srt_engine *)> engine{nullptr, srt_engine_destroy};

  Instance(const Model &of, int threads, const char *isa) : layers(of.layers), model(of.c) {
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

// ---- batches ------------------------------------------------------------------------------------

// A copy's vectors have no room to spare: batches are run as copies.
struct Batch {
  std::vector<int32_t> input_ids, positions, out_slots, qo_indptr{0}, kv_indptr{0}, kv_indices;
  std::vector<int32_t> sample_tokens, top_k, suppress_indptr{0}, suppress_ids, mask_rows;
  std::vector<int32_t> logprob_tokens, logprob_targets, next_ids;
  std::vector<float> temperature, top_p, min_p, logprobs, prompt_logprobs;
  std::vector<double> uniform;
  std::vector<uint8_t> want_logprob;
  std::vector<uint32_t> masks;
  std::vector<int> requests, sampling;  // of each row; of each sample

  srt_batch c(bool share) {
    return {int32_t(input_ids.size()), int32_t(qo_indptr.size() - 1), int32_t(next_ids.size()),
            int32_t(logprob_tokens.size()), input_ids.data(), positions.data(), out_slots.data(),
            qo_indptr.data(), kv_indptr.data(), kv_indices.data(), sample_tokens.data(),
            temperature.data(), top_p.data(), min_p.data(), top_k.data(), uniform.data(),
            want_logprob.data(), suppress_indptr.data(), suppress_ids.data(),
            masks.empty() ? nullptr : mask_rows.data(), masks.data(), logprob_tokens.data(),
            logprob_targets.data(), share, next_ids.data(), logprobs.data(),
            prompt_logprobs.data()};
  }
  bool allows(size_t sample, int id) const {
    const auto *first = suppress_ids.data() + suppress_indptr[sample];
    const auto *last = suppress_ids.data() + suppress_indptr[sample + 1];
    if (std::find(first, last, id) != last) return false;
    const int row = mask_rows[sample];
    return row < 0 || (masks[size_t(row) * kMaskWords + id / 32] >> (id % 32) & 1);
  }
  void add_sample(int32_t token, int vocab = kVocab);
};

// Random parameters; one token at least stays allowed.
void Batch::add_sample(int32_t token, int vocab) {
  const int words = (vocab + 31) / 32, safe = below(vocab);
  sample_tokens.push_back(token);
  temperature.push_back(one_of({0.f, .7f, 1.3f}));
  top_k.push_back(one_of({-1, -1, 1, 5, 50, 500}));
  top_p.push_back(one_of({1.f, 1.f, .9f, .1f}));
  min_p.push_back(one_of({0.f, 0.f, .05f}));
  uniform.push_back(double(rng()) * 0x1p-32);
  want_logprob.push_back(one_in(2));
  for (int i = one_in(3) ? below(4) : 0; i > 0; i--)
    if (const int id = below(vocab + 2) - 1; id != safe) suppress_ids.push_back(id);
  suppress_indptr.push_back(int32_t(suppress_ids.size()));
  mask_rows.push_back(one_in(4) ? int32_t(masks.size()) / words : -1);
  if (mask_rows.back() >= 0) {
    const uint32_t density = one_of<uint32_t>({0, 0x01000100, 0xffffffff});  // few, half, most
    for (int i = 0; i < words; i++)
      masks.push_back(density ? uint32_t(rng()) | density : rng() & rng() & rng() & rng() & rng());
    masks[size_t(mask_rows.back()) * words + safe / 32] |= 1u << (safe % 32);
  }
  next_ids.push_back(-1), logprobs.push_back(0);
}

// What a scheduler does: requests that share prefixes, chunks of prompts, decodes, one slot each.
class Traffic {
 public:
  Traffic() : uses_(kSlots) {
    for (int slot = 0; slot < kSlots; slot++) free_.push_back(slot);
    std::shuffle(free_.begin(), free_.end(), rng);
    spawn(0, 300);
  }

  Batch next() {
    if (requests_.size() < 8 && one_in(2)) spawn(below(int(requests_.size())), 0);
    Batch batch;
    for (int i = 0; i < int(requests_.size()); i++)
      if (batch.requests.empty() || !one_in(8)) add_row(batch, i, 1 + below(100), true);
    return batch;
  }

  // One token of every request that has its prompt behind it.
  Batch decodes() {
    Batch batch;
    for (int i = 0; i < int(requests_.size()); i++) add_row(batch, i, 1, false);
    return batch;
  }

  // Append what was sampled, and let go of what is long enough.
  void commit(const Batch &batch) {
    for (size_t s = 0; s < batch.sampling.size(); s++)
      requests_[batch.sampling[s]].ids.push_back(batch.next_ids[s]);
    for (size_t i = requests_.size(); i-- > 1;)
      if (int(requests_[i].slots.size()) >= requests_[i].longest) {
        for (int slot : requests_[i].slots)
          if (--uses_[slot] == 0) free_.push_back(slot);
        requests_.erase(requests_.begin() + i);
      }
  }

 private:
  struct Request {
    std::vector<int32_t> ids, slots;  // slots of the ids that are computed
    int longest;
  };

  // A prompt of `fresh` ids of its own, or a few, behind a prefix of request `donor`.
  void spawn(int donor, int fresh) {
    Request made{{}, {}, 0};
    if (!requests_.empty()) {
      const Request &from = requests_[donor];
      const int computed = int(from.slots.size());
      const int shared = std::min(computed, one_of({computed, below(computed + 1), 128, 256}));
      made.ids.assign(from.ids.begin(), from.ids.begin() + shared);
      made.slots.assign(from.slots.begin(), from.slots.begin() + shared);
      for (int slot : made.slots) uses_[slot]++;
    }
    for (int i = fresh ? fresh : 1 + below(one_of({3, 90})); i > 0; i--)
      made.ids.push_back(below(kVocab));
    made.longest = std::min(int(made.ids.size()) + 5 + below(40), 450);
    requests_.push_back(std::move(made));
  }

  void add_row(Batch &batch, int at, int chunk, bool may_log) {
    Request &request = requests_[at];
    const int first = int(batch.input_ids.size()), done = int(request.slots.size());
    const int n = std::min(chunk, int(request.ids.size()) - done);
    for (int i = 0; i < n; i++) {
      batch.input_ids.push_back(request.ids[done + i]);
      batch.positions.push_back(done + i);
      batch.out_slots.push_back(free_.back());
      request.slots.push_back(free_.back());
      uses_[free_.back()]++;
      free_.pop_back();
    }
    if (may_log && n > 1 && one_in(2))
      for (int i = 0; i + 1 < n; i++) {
        batch.logprob_tokens.push_back(first + i);
        batch.logprob_targets.push_back(request.ids[done + i + 1]);
        batch.prompt_logprobs.push_back(0);
      }
    batch.requests.push_back(at);
    batch.kv_indices.insert(batch.kv_indices.end(), request.slots.begin(), request.slots.end());
    batch.qo_indptr.push_back(int32_t(batch.input_ids.size()));
    batch.kv_indptr.push_back(int32_t(batch.kv_indices.size()));
    if (request.slots.size() < request.ids.size()) return;
    batch.sampling.push_back(at);
    batch.add_sample(first + n - 1);
  }

  std::vector<Request> requests_;
  std::vector<int> uses_, free_;
};
