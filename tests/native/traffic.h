// Random batches as a scheduler plans them, for the driver: requests that share prefixes, chunks of
// prompts, decodes, one slot for each token.
#pragma once
#include <algorithm>

#include "model.h"

namespace driver {

// The driver runs copies of batches, because the vectors of a copy have no spare capacity.
struct Batch {
  std::vector<int32_t> input_ids, positions, out_slots, qo_indptr{0}, kv_indptr{0}, kv_indices;
  std::vector<int32_t> sample_tokens, top_k, suppress_indptr{0}, suppress_ids, mask_rows;
  std::vector<int32_t> logprob_tokens, logprob_targets, next_ids;
  std::vector<int32_t> adjust_indptr{0}, adjust_ids;
  std::vector<int32_t> detail_rows, top_indptr{0}, detail_indptr{0}, detail_ids, top_ids;
  std::vector<int32_t> embed_tokens;
  std::vector<float> temperature, top_p, min_p, top_n_sigma, logprobs, prompt_logprobs;
  std::vector<float> adjust_repeat, adjust_add, top_logprobs, id_logprobs, embeds;
  std::vector<double> uniform;
  std::vector<uint8_t> want_logprob;
  std::vector<uint32_t> masks;
  std::vector<int> sampling;  // the request of each sample
  int vocab = kVocab;

  int mask_words() const { return (vocab + 31) / 32; }
  srt_batch c(bool share) {
    return {int32_t(input_ids.size()), int32_t(qo_indptr.size() - 1), int32_t(next_ids.size()),
            int32_t(logprob_tokens.size()), int32_t(detail_rows.size()), input_ids.data(),
            positions.data(), out_slots.data(),
            qo_indptr.data(), kv_indptr.data(), kv_indices.data(), sample_tokens.data(),
            temperature.data(), top_p.data(), min_p.data(), top_n_sigma.data(), top_k.data(),
            uniform.data(), want_logprob.data(), suppress_indptr.data(), suppress_ids.data(),
            masks.empty() ? nullptr : mask_rows.data(), masks.data(),
            adjust_ids.empty() ? nullptr : adjust_indptr.data(), adjust_ids.data(),
            adjust_repeat.data(), adjust_add.data(), logprob_tokens.data(),
            logprob_targets.data(), detail_rows.data(), top_indptr.data(), detail_indptr.data(),
            detail_ids.data(), int32_t(embed_tokens.size()), embed_tokens.data(), embeds.data(),
            share, next_ids.data(), logprobs.data(), prompt_logprobs.data(),
            top_ids.data(), top_logprobs.data(), id_logprobs.data()};
  }
  bool allows(size_t sample, int id) const {
    const auto *first = suppress_ids.data() + suppress_indptr[sample];
    const auto *last = suppress_ids.data() + suppress_indptr[sample + 1];
    if (std::find(first, last, id) != last) return false;
    const int row = mask_rows[sample];
    return row < 0 || (masks[size_t(row) * mask_words() + id / 32] >> (id % 32) & 1);
  }
  void add_sample(int32_t token);
  void add_embedding(int32_t token);
  void adjust_sample();
  void add_details();
};

// Adjusts consecutive ids from a random one on, so that they are distinct.
inline void Batch::adjust_sample() {
  const int first = below(vocab), count = one_in(3) ? one_of({0, 1, 7, vocab}) : 0;
  for (int i = 0; i < count; i++) {
    adjust_ids.push_back((first + i) % vocab);
    adjust_repeat.push_back(between(.5f, 2));
    adjust_add.push_back(between(-5, 5));
  }
  adjust_indptr.push_back(int32_t(adjust_ids.size()));
}

inline void Batch::add_embedding(int32_t token) {
  const std::vector<float> row = random_floats(kHidden);
  embed_tokens.push_back(token);
  embeds.insert(embeds.end(), row.begin(), row.end());
}

// Adds details to some samples and prompt log-probabilities, once the batch has all of these.
inline void Batch::add_details() {
  const int rows = int(next_ids.size() + logprob_tokens.size());
  for (int row = 0; row < rows; row++) {
    if (!one_in(4)) continue;
    detail_rows.push_back(row);
    top_indptr.push_back(top_indptr.back() + one_of({0, 1, 5, 40, vocab}));
    for (int i = below(4); i > 0; i--) detail_ids.push_back(below(vocab));
    detail_indptr.push_back(int32_t(detail_ids.size()));
  }
  top_ids.assign(top_indptr.back(), -1), top_logprobs.assign(top_indptr.back(), 1);
  id_logprobs.assign(detail_ids.size(), 1);
}

// Random parameters; at least one token stays allowed.
inline void Batch::add_sample(int32_t token) {
  const int words = mask_words(), safe = below(vocab);
  sample_tokens.push_back(token);
  temperature.push_back(one_of({0.f, .7f, 1.3f}));
  top_k.push_back(one_of({-1, -1, 1, 5, 50, 500}));
  top_p.push_back(one_of({1.f, 1.f, .9f, .1f}));
  min_p.push_back(one_of({0.f, 0.f, .05f}));
  top_n_sigma.push_back(one_of({-1.f, 0.f, 1.f}));
  uniform.push_back(double(rng()) * 0x1p-32);
  want_logprob.push_back(one_in(2));
  for (int i = one_in(3) ? below(4) : 0; i > 0; i--)
    if (const int id = below(vocab + 2) - 1; id != safe) suppress_ids.push_back(id);
  suppress_indptr.push_back(int32_t(suppress_ids.size()));
  mask_rows.push_back(one_in(4) ? int32_t(masks.size() / words) : -1);
  if (mask_rows.back() >= 0) {
    const uint32_t density = one_of<uint32_t>({0, 0x01000100, 0xffffffff});  // few, half, most
    for (int i = 0; i < words; i++)
      masks.push_back(density ? uint32_t(rng()) | density : rng() & rng() & rng() & rng() & rng());
    masks[size_t(mask_rows.back()) * words + safe / 32] |= 1u << (safe % 32);
  }
  adjust_sample();
  next_ids.push_back(-1), logprobs.push_back(0);
}

// The requests in flight, and batches of them.
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
      if (i == 0 || !one_in(8)) add_row(batch, i, 1 + below(100), true);
    batch.add_details();
    return batch;
  }

  // A batch with one token of every request.
  Batch decodes() {
    Batch batch;
    for (int i = 0; i < int(requests_.size()); i++) add_row(batch, i, 1, false);
    batch.add_details();
    return batch;
  }

  // Append what was sampled, and free requests that are long enough.
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

  // A request: a prefix of request `donor`, then `fresh` ids of its own, or a few if that is 0.
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
    const int shown = one_in(4) ? below(n + 1) : 0;  // tokens whose embeddings are given
    for (int i = 0; i < n; i++) {
      if (i < shown) batch.add_embedding(first + i);
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

}  // namespace driver
