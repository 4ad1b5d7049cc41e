// Drives the whole C ABI of the native kernels, as a program that a sanitizer can watch:
// `driver STEPS [LEVEL]` runs STEPS random steps per model, at LEVEL or at all levels of this CPU.
// tests/scheduler_proc/kernels/test_sanitizers.py builds and runs it.
//
// Every array is on the heap, with exactly the size that the header asks for, so ASan reports any
// access past its end. Results of three threads must equal those of one.
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "checks.h"
#include "masks.h"
#include "model.h"
#include "traffic.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif

// ---- counting allocations -----------------------------------------------------------------------

static std::atomic<long> allocations{0};

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

namespace driver {
namespace {

// ---- whole steps --------------------------------------------------------------------------------

constexpr int kFewestSteps = 20;  // with fewer the first prompt may not be computed

void step(Instance &at, Batch &batch, bool share) {
  const srt_batch c = batch.c(share);
  check(srt_engine_step(at.engine.get(), &c) == 0, "srt_engine_step");
}

void check_outputs(const Batch &batch) {
  for (size_t s = 0; s < batch.next_ids.size(); s++) {
    const int id = batch.next_ids[s];
    check(id >= 0 && id < batch.vocab && batch.allows(s, id), "the sample is allowed");
    const float logprob = batch.logprobs[s];
    check(batch.want_logprob[s] ? logprob <= 1e-5f : std::isnan(logprob), "its log-probability");
  }
  for (float logprob : batch.prompt_logprobs)
    check(logprob <= 1e-5f && std::isfinite(logprob), "a prompt's log-probability");
  for (float logprob : batch.id_logprobs) check(logprob <= 1e-5f, "an id's log-probability");
  for (size_t d = 0; d < batch.detail_rows.size(); d++)
    for (int i = batch.top_indptr[d]; i < batch.top_indptr[d + 1]; i++) {
      const bool is_first = i == batch.top_indptr[d];
      check(batch.top_ids[i] >= 0 && batch.top_ids[i] < batch.vocab, "one of the likeliest");
      check(batch.top_logprobs[i] <= (is_first ? 1e-5f : batch.top_logprobs[i - 1]), "in order");
    }
}

void check_same_outputs(const Batch &a, const Batch &b) {
  check(same_bits(a.next_ids, b.next_ids), "the same ids");
  check(same_bits(a.logprobs, b.logprobs), "the same log-probabilities");
  check(same_bits(a.prompt_logprobs, b.prompt_logprobs), "also of prompts");
  check(same_bits(a.top_ids, b.top_ids), "the same likeliest ids");
  check(same_bits(a.top_logprobs, b.top_logprobs), "and their log-probabilities");
  check(same_bits(a.id_logprobs, b.id_logprobs), "also of chosen ids");
}

// Compares three threads that share prefixes with one that does not.
void run_steps(Instance &many, Instance &one, Traffic &traffic, int steps) {
  const std::string model = doing;
  for (int i = 0; i < steps; i++) {
    doing = model + ", step " + std::to_string(i);
    const Batch planned = traffic.next();
    Batch batch = planned, reference = planned;
    step(many, batch, !one_in(4));
    step(one, reference, false);
    check_outputs(batch);
    check_same_outputs(batch, reference);
    traffic.commit(batch);
  }
  doing = model;
  for (size_t i = 0; i < many.pools.size(); i++)
    check(same_bits(many.pools[i], one.pools[i]), "the same pools");
}

// Steps of one shape neither grow the workspace nor allocate in any other way.
void run_steady(Instance &at, const Batch &planned) {
  Batch batch = planned;
  int64_t growths = 0;
  long allocated = 0;
  for (int i = 0; i < 52; i++) {
    if (i == 2) growths = srt_engine_growths(at.engine.get()), allocated = allocations;
    for (int32_t &id : batch.input_ids) id = below(kVocab);
    step(at, batch, true);
  }
  check(srt_engine_growths(at.engine.get()) == growths, "no growth in the steady state");
  check(allocations == allocated, "no allocation in the steady state");
  std::vector<int64_t> counts(kLayers * kExperts);
  srt_engine_expert_counts(at.engine.get(), counts.data());
  const int64_t computed = std::accumulate(counts.begin(), counts.end(), int64_t(0));
  const int64_t of_steps = 52 * int64_t(batch.input_ids.size()) * kUsedExperts;
  check(computed >= of_steps && computed % kUsedExperts == 0, "experts' tokens are counted");
  std::vector<double> seconds(SRT_NUM_PHASES);
  srt_engine_profile(at.engine.get(), seconds.data());
  for (int i = 0; i < SRT_NUM_PHASES; i++)
    check(srt_phase_name(i) != nullptr && seconds[i] >= 0, "a phase has a name and a time");
}

void run_refused_steps(Instance &at, const Batch &planned) {
  const auto refuses = [&](const char *why, auto spoil) {
    Batch spoilt = planned;
    spoil(spoilt);
    Batch batch = spoilt;
    const srt_batch c = batch.c(true);
    check_refused(srt_engine_step(at.engine.get(), &c) == -1, why);
  };
  refuses("an id", [](Batch &b) { b.input_ids[0] = kVocab; });
  refuses("a position", [](Batch &b) { b.positions.back() = -1; });
  refuses("an out slot", [](Batch &b) { b.out_slots[0] = kSlots; });
  refuses("a KV slot", [](Batch &b) { b.kv_indices.back() = -1; });
  refuses("an empty row", [](Batch &b) { b.qo_indptr[1] = 0; });
  refuses("no rows", [](Batch &b) { b.qo_indptr = b.kv_indptr = {0}; });
  refuses("a count of tokens", [](Batch &b) { b.input_ids.push_back(1); });
  refuses("a sample's token", [](Batch &b) { b.sample_tokens[0] = int(b.input_ids.size()); });
  refuses("a target", [](Batch &b) {
    b.logprob_tokens = {0}, b.logprob_targets = {kVocab}, b.prompt_logprobs = {0};
  });
  refuses("an adjusted id", [](Batch &b) {
    b.adjust_indptr.assign(b.next_ids.size() + 1, 1), b.adjust_indptr[0] = 0;
    b.adjust_ids = {kVocab}, b.adjust_repeat = {1}, b.adjust_add = {0};
  });
  refuses("an embedding's token", [](Batch &b) {
    b.embed_tokens.clear(), b.embeds.clear();
    b.add_embedding(int(b.input_ids.size()));
  });
  refuses("two embeddings of a token", [](Batch &b) {
    b.embed_tokens.clear(), b.embeds.clear();
    b.add_embedding(0), b.add_embedding(0);
  });
  refuses("a detail's row", [](Batch &b) {
    b.detail_rows = {int(b.next_ids.size() + b.logprob_tokens.size())};
    b.top_indptr = b.detail_indptr = {0, 0};
  });
  refuses("more than there are", [](Batch &b) {
    b.detail_rows = {0}, b.top_indptr = {0, kVocab + 1}, b.detail_indptr = {0, 0};
  });
  refuses("an impossible mask", [](Batch &b) {
    b.masks.assign(b.mask_words(), 0);
    std::fill(b.mask_rows.begin(), b.mask_rows.end(), -1);
    b.mask_rows[0] = 0;
  });
  Batch batch = planned;
  step(at, batch, true);
  check_outputs(batch);
}

void run_refused_models(const Model &model, const char *isa) {
  const auto refuses = [&](const char *why, int threads, const char *level, auto spoil) {
    Instance at(model, 1, isa);
    spoil(at);
    srt_engine *engine = srt_engine_create(&at.model, threads, level);
    check_refused(engine == nullptr, why);
  };
  refuses("no threads", 0, isa, [](Instance &) {});
  refuses("an unknown level", 1, "abacus", [](Instance &) {});
  refuses("a head size", 1, isa, [](Instance &at) { at.model.head_dim = 48; });
  refuses("kv heads", 1, isa, [](Instance &at) { at.model.kv_heads = 4; });
  refuses("a pool's format", 1, isa, [](Instance &at) { at.model.kv_format = SRT_Q8; });
  refuses("odd activations", 1, isa, [](Instance &at) { at.model.activation_bits[SRT_IN_DOWN] = 10; });
  refuses("a shape", 1, isa, [](Instance &at) { at.layers[1].o.k = kHidden; });
  refuses("a format", 1, isa, [](Instance &at) { at.layers[0].up.format = SRT_Q6_TILES + 1; });
  if (!srt_isa_has_tiles(isa))
    refuses("tiles", 1, isa, [](Instance &at) { at.layers[1].down.format = SRT_Q4_TILES; });
  refuses("no data", 1, isa, [](Instance &at) { at.model.head.data = nullptr; });
  refuses("no pool", 1, isa, [](Instance &at) { at.layers[1].v_pool = nullptr; });
  refuses("an expert's shape", 1, isa, [&](Instance &at) { at.experts.width = 32; });
  refuses("experts", 1, isa, [&](Instance &at) { at.experts.used = kExperts + 1; });
  refuses("groups", 1, isa, [&](Instance &at) { at.experts.rule.groups = 2; });
  refuses("a scale", 1, isa, [](Instance &at) { at.model.logit_scale = 0; });
  refuses("an odd bias", 1, isa, [](Instance &at) { at.model.head.bias = at.model.final_norm; });
}

void run_model(const Formats &formats, int32_t kv_format, const Widths &activation_bits,
               const char *isa, int steps) {
  const Model model(formats, kv_format, activation_bits);
  Instance many(model, 3, isa), one(model, 1, isa);
  Traffic traffic;
  run_steps(many, one, traffic, steps);
  const Batch decodes = traffic.decodes();
  run_steady(many, decodes);
  run_refused_steps(many, decodes);
  run_refused_models(model, isa);
}

// ---- weights ------------------------------------------------------------------------------------

std::vector<float> unpacked(const Packed &data, int32_t format, int n, int k) {
  const srt_matrix matrix{format, n, k, data.get(), nullptr};
  std::vector<float> rows(size_t(n) * k), row(k);
  for (int i = 0; i < n; i++) {
    check(srt_unpack_row(&matrix, i, row.data()) == 0, "srt_unpack_row");
    std::copy(row.begin(), row.end(), rows.begin() + size_t(i) * k);
  }
  check_refused(srt_unpack_row(&matrix, n, row.data()) == -1, "a row that is not there");
  return rows;
}

void run_packing() {
  constexpr int n = 21, k = 256;
  std::vector<int32_t> order(n);
  for (int i = 0; i < n; i++) order[i] = n - 1 - i;
  const std::pair<int32_t, int32_t> exact[] = {
      {SRT_SRC_F32, SRT_F32}, {SRT_SRC_F16, SRT_F16}, {SRT_SRC_BF16, SRT_BF16},
      {SRT_SRC_Q4_0, SRT_Q4}, {SRT_SRC_Q4_1, SRT_Q4}, {SRT_SRC_Q8_0, SRT_Q8},
      {SRT_SRC_Q4_K, SRT_Q4K}, {SRT_SRC_Q6_K, SRT_Q6},
      {SRT_SRC_Q4_1, SRT_Q4_TILES}, {SRT_SRC_Q8_0, SRT_Q8_TILES},
      {SRT_SRC_Q4_K, SRT_Q4K_TILES}, {SRT_SRC_Q6_K, SRT_Q6_TILES}};
  for (const auto &[source, format] : exact) {
    doing = "packing " + std::to_string(source);
    const std::vector<uint8_t> rows = source_rows(source, n, k);
    const auto packed_as = [&](int32_t to) {
      return unpacked(pack(source, rows, n, k, to, order.data()), to, n, k);
    };
    const std::vector<float> floats = packed_as(SRT_F32);
    check(packed_as(format) == floats, "its own format keeps the values");
    if (format > SRT_BF16) continue;
    for (int32_t to : {SRT_Q8, SRT_Q4}) {
      const std::vector<float> rounded = packed_as(to);
      for (size_t i = 0; i < floats.size(); i++)
        check(std::fabs(rounded[i] - floats[i]) < .05f, "quantised values are near");
    }
  }
  const std::vector<uint8_t> rows = source_rows(SRT_SRC_F32, n, k);
  const Packed out = packed_space(SRT_F32, n, k);
  const auto refuses = [&](const char *why, int32_t source, int inputs, int32_t format) {
    check_refused(srt_pack(source, rows.data(), n, inputs, nullptr, format, out.get()) == -1, why);
  };
  refuses("a source", 99, k, SRT_F32);
  refuses("a format that loses values", SRT_SRC_F32, k, SRT_Q6);
  refuses("half a block", SRT_SRC_Q4_K, 128, SRT_Q4K);
}

// ---- single operations --------------------------------------------------------------------------

using Pool = std::unique_ptr<srt_pool, void (*)(srt_pool *)>;

struct Ops {
  Pool many, one;

  Ops(const char *isa, int32_t activation_bits)
      : many(srt_pool_create(3, isa, activation_bits), srt_pool_destroy),
        one(srt_pool_create(1, isa, activation_bits), srt_pool_destroy) {
    check(many && one, "srt_pool_create");
  }

  // Checks that call(pool, y) gives the same y [n] with three threads and with one.
  template <class Call>
  void same(size_t n, Call call) {
    std::vector<float> y(n), reference(n);
    check(call(many.get(), y.data()) == 0, "an operation");
    check(call(one.get(), reference.data()) == 0, "an operation on one thread");
    check(same_bits(y, reference), "three threads compute what one does");
  }

  void linear(int32_t format, int m) {
    constexpr int k = 96;
    Matrices matrices;
    std::vector<float> x = random_floats(size_t(m) * k);
    if (m > 1) x.back() = NAN;
    const srt_matrix odd = matrices.make(format, kVocab, k), up = matrices.make(format, 80, k);
    const srt_matrix gate = matrices.make(format, 80, k, true);
    for (const srt_matrix *w : {&odd, &gate})
      same(size_t(m) * w->n,
           [&](srt_pool *pool, float *y) { return srt_op_linear(pool, w, x.data(), m, y); });
    same(size_t(m) * gate.n, [&](srt_pool *pool, float *y) {
      return srt_op_gate_up(pool, &gate, &up, x.data(), m, y);
    });
    srt_matrix other = up;
    other.format = (format + 1) % (SRT_Q6_TILES + 1);
    check_refused(srt_op_gate_up(many.get(), &gate, &other, x.data(), m, nullptr) == -1, "formats");
  }

  void attention(Batch batch, int head_dim, int32_t kv_format, int32_t weights, int window) {
    std::vector<uint8_t> pools[2];
    for (std::vector<uint8_t> &pool : pools) {
      pool.resize(pool_bytes(kv_format, head_dim));
      const int32_t source = kv_format == SRT_F32 ? SRT_SRC_F32 : SRT_SRC_F16;
      const std::vector<uint8_t> some = source_rows(source, 1, 4096);
      for (size_t at = 0; at < pool.size(); at += some.size())
        std::copy_n(some.begin(), std::min(some.size(), pool.size() - at), pool.begin() + at);
    }
    srt_model model{};
    model.heads = kHeads, model.kv_heads = kKvHeads, model.head_dim = head_dim;
    model.kv_format = kv_format, model.attn_scale = .1f, model.num_slots = kSlots;
    if (kv_format == SRT_I16)
      for (std::vector<uint8_t> &pool : pools) {
        const size_t heads = size_t(kSlots) * kKvHeads, codes = 2 * heads * head_dim;
        const std::vector<float> scales = random_floats(heads, 1e-5f, 1e-4f);
        std::memcpy(pool.data() + codes, scales.data(), 4 * heads);
      }
    srt_layer layer{};
    layer.q.format = weights;
    layer.k_pool = pools[0].data(), layer.v_pool = pools[1].data(), layer.window = window;
    const size_t n = batch.input_ids.size() * kHeads * head_dim;
    const std::vector<float> q = random_floats(n);
    const srt_batch c = batch.c(true);
    same(n, [&](srt_pool *pool, float *y) {
      return srt_op_attention(pool, &model, &layer, &c, q.data(), y);
    });
  }

  void rows(int m, int heads, int head_dim) {
    const int k = heads * head_dim;
    const std::vector<float> x = random_floats(size_t(m) * k), w = random_floats(k);
    const std::vector<float> freqs = random_floats(head_dim / 2, 0, 1);
    std::vector<int32_t> positions(m);
    for (int32_t &position : positions) position = below(5000);
    same(x.size(), [&](srt_pool *pool, float *y) {
      return srt_op_rms_norm(pool, x.data(), w.data(), m, k, 1e-5f, y);
    });
    same(x.size(), [&](srt_pool *pool, float *y) {
      std::copy(x.begin(), x.end(), y);
      return srt_op_rope(pool, y, positions.data(), freqs.data(), m, heads, head_dim);
    });
  }

  void sample(int vocab, bool is_finite) {
    Batch batch;
    batch.vocab = vocab;
    for (int i = 0; i < 40; i++) batch.add_sample(0);
    batch.add_details();
    std::vector<float> logits = random_floats(size_t(40) * vocab, -8, 8);
    if (!is_finite)
      for (int i = 0; i < 200; i++)
        logits[below(int(logits.size()))] = one_of({NAN, INFINITY, -INFINITY});
    const std::vector<float> before = logits;
    Batch first = batch, second = batch;
    const srt_batch a = first.c(false), b = second.c(false);
    check(srt_op_sample(many.get(), logits.data(), vocab, &a) == 0, "srt_op_sample");
    check(srt_op_sample(one.get(), logits.data(), vocab, &b) == 0, "srt_op_sample");
    if (is_finite) check_outputs(first);
    check_same_outputs(first, second);
    check(same_bits(logits, before), "logits are put back");
  }

  void read(size_t words) {
    std::vector<uint64_t> data(words);
    for (uint64_t &word : data) word = rng();
    const uint64_t sum = srt_op_read(one.get(), data.data(), words * 8);
    check(srt_op_read(many.get(), data.data(), words * 8) == sum, "srt_op_read");
  }
};

int32_t last_format(const char *isa) { return srt_isa_has_tiles(isa) ? SRT_Q6_TILES : SRT_Q6; }

void run_ops(const char *isa) {
  Ops ops(isa, 8), twelve_ops(isa, 12), wide_ops(isa, 16);
  for (int32_t format = SRT_F32; format <= last_format(isa); format++)
    for (int m : {1, 3, 8, 50})
      for (Ops *each : {&ops, &twelve_ops, &wide_ops}) each->linear(format, m);
  Traffic traffic;
  for (int i = 0; i < 20; i++) {
    Batch batch = traffic.next();
    for (int32_t &id : batch.next_ids) id = below(kVocab);
    traffic.commit(batch);
  }
  const Batch mixed = traffic.next();
  for (int head_dim : {16, 32, 64, 80, 96, 128, 256})
    for (int32_t kv_format : {SRT_F16, SRT_F32, SRT_I16})
      for (int32_t weights : {SRT_Q4, SRT_Q4_TILES})
        ops.attention(mixed, head_dim, kv_format, weights, one_of({0, 100}));
  for (int head_dim : {16, 32, 80}) ops.rows(37, kHeads, head_dim);
  for (int vocab : {kVocab, 3001}) ops.sample(vocab, true), ops.sample(vocab, false);
  for (int words : {1, 300000}) ops.read(words);
  check_refused(srt_pool_create(1, "abacus", 0) == nullptr, "a pool of an unknown level");
  check_refused(srt_pool_create(1, isa, 4) == nullptr, "a pool with odd activations");
}

// ---- the library --------------------------------------------------------------------------------

void run_library() {
  doing = "library";
  check(srt_abi_version() == SRT_ABI_VERSION, "the header is the library's");
  check(srt_phase_name(-1) == nullptr && srt_phase_name(SRT_NUM_PHASES) == nullptr, "phases");
  setenv("SRT_ISA", "abacus", 1);
  check_refused(srt_isa() == nullptr, "a level that does not exist");
  unsetenv("SRT_ISA");
  check(srt_isa_available(srt_isa()) == 1, "the best level is available");
  check(srt_isa_available("abacus") == 0, "what does not exist is not");
  std::thread([] { check(srt_last_error()[0] == '\0', "an error is its thread's"); }).join();
#ifdef COUNTS_ALLOCATIONS
  const long before = allocations;
  delete new std::string(100, ' ');
  check(allocations > before, "allocations are counted");
#endif
}

Formats all_of(int32_t format) {
  Formats formats;
  formats.fill(format);
  return formats;
}

Widths all_inputs(int32_t bits) {
  Widths widths;
  widths.fill(bits);
  return widths;
}

// A model's formats, and the bits of its activations.
using Case = std::pair<Formats, Widths>;

std::vector<Case> cases_of(const char *isa) {
  std::vector<Formats> mixed{
      {SRT_Q4K, SRT_Q8, SRT_Q6, SRT_Q4, SRT_Q4K, SRT_Q6, SRT_F16, SRT_Q6, SRT_Q8},
      {SRT_F32, SRT_F16, SRT_BF16, SRT_Q8, SRT_Q4, SRT_F32, SRT_Q8, SRT_F16, SRT_BF16}};
  if (srt_isa_has_tiles(isa))
    mixed.push_back({SRT_Q4_TILES, SRT_Q8, SRT_Q6_TILES, SRT_F32, SRT_Q4K_TILES, SRT_Q4_TILES,
                     SRT_Q8_TILES, SRT_Q6_TILES, SRT_Q8_TILES});
  std::vector<Case> cases;
  for (const Formats &formats : mixed)
    for (const Widths &bits : {all_inputs(0), all_inputs(16), Widths{8, 16, 0, 12, 8}})
      cases.push_back({formats, bits});
  for (int32_t format = SRT_F32; format <= last_format(isa); format++) {
    cases.push_back({all_of(format), all_inputs(8)});
    if (format < SRT_Q4 || format > SRT_Q6) continue;
    for (const int32_t bits : {12, 16}) cases.push_back({all_of(format), all_inputs(bits)});
  }
  return cases;
}

void run_level(const char *isa, int number, int steps) {
  const std::vector<Case> cases = cases_of(isa);
  for (size_t i = 0; i < cases.size(); i++) {
    const auto &[formats, bits] = cases[i];
    static const std::pair<int32_t, const char *> pools[] = {
        {SRT_F16, ", f16"}, {SRT_F32, ", f32"}, {SRT_I16, ", i16"}};
    const auto &[kv_format, name] = pools[(i + number) % 3];
    doing = std::string(isa) + ", model " + std::to_string(i) + name;
    run_model(formats, kv_format, bits, isa, steps);
  }
  doing = std::string(isa) + ", operations";
  run_ops(isa);
  std::printf("%s: %zu models, %d steps\n", isa, cases.size(), steps);
}

}  // namespace
}  // namespace driver

int main(int argc, char **argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  const std::string wanted = argc > 2 ? argv[2] : "";
  driver::doing = "arguments";
  driver::check(steps >= driver::kFewestSteps, "steps enough for something to be sampled");
  driver::run_library();
  driver::run_packing();
  driver::run_masks();
  int number = -1;
  for (const std::string isa : {"portable", "avx2", "avx512", "amx"}) {
    number++;
    if (!wanted.empty() && isa != wanted) continue;
    if (srt_isa_available(isa.c_str()))
      driver::run_level(isa.c_str(), number, steps);
    else
      std::printf("%s: not on this CPU\n", isa.c_str());
  }
}
