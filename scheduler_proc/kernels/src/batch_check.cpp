// Checks of everything that indexes memory. The scheduler plans correct batches; a defect in it
// must end as an error that names the field, not as a stray write.
#include "batch_check.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "error.h"
#include "mixture.h"

namespace srt {

namespace {

int check_range(const char *field, const int32_t *values, int count, int low, int high) {
  for (int i = 0; i < count; i++)
    if (values[i] < low || values[i] >= high)
      return set_error("%s[%d] = %d is not in [%d, %d)", field, i, values[i], low, high);
  return 0;
}

int check_indptr(const char *field, const int32_t *indptr, int rows) {
  if (indptr[0] != 0) return set_error("%s does not begin with 0", field);
  for (int i = 0; i < rows; i++)
    if (indptr[i + 1] <= indptr[i]) return set_error("%s: row %d is empty", field, i);
  return 0;
}

int check_shape(const char *name, const srt_matrix &w, int n, int k) {
  if (w.n != n || w.k != k)
    return set_error("%s is [%d, %d] and not [%d, %d]", name, w.n, w.k, n, k);
  if (w.format < SRT_F32 || w.format > SRT_Q6_TILES) return set_error("%s: unknown format", name);
  if (is_quantized(w.format) && k % kGroup != 0)
    return set_error("%s: %d inputs are not groups of %d", name, k, kGroup);
  if (w.bias != nullptr && n % kBlock != 0)
    return set_error("%s: a bias needs a multiple of %d outputs", name, kBlock);
  return w.data == nullptr ? set_error("%s has no data", name) : 0;
}

int check_tiles(const char *name, const srt_matrix &w, bool has_tiles) {
  if (is_tiled(w.format) && !has_tiles)
    return set_error("%s is in tiles, which this instruction-set level does not compute with", name);
  return 0;
}

int check_matrix(const char *name, const srt_matrix &w, int n, int k, bool has_tiles) {
  return check_shape(name, w, n, k) || check_tiles(name, w, has_tiles) ? -1 : 0;
}

int check_rule(const srt_experts &e) {
  const srt_router_rule &rule = e.rule;
  if (e.count < 1 || e.used < 1 || e.used > std::min(e.count, kMaxUsed))
    return set_error("%d of %d experts are used by a token, and must be 1 to %d", e.used, e.count,
                     std::min(e.count, kMaxUsed));
  if (rule.groups < 1 || rule.groups > kMaxGroups || e.count % rule.groups != 0)
    return set_error("%d experts are not %d equal groups, at most %d", e.count, rule.groups,
                     kMaxGroups);
  if (rule.used_groups < 1 || rule.used_groups > rule.groups ||
      e.used > e.count / rule.groups * rule.used_groups)
    return set_error("%d experts out of %d of %d groups", e.used, rule.used_groups, rule.groups);
  return std::isfinite(rule.scale) ? 0 : set_error("the experts' scale is not finite");
}

int check_mlp(const char *name, const srt_model &m, const MlpWeights &w, int width, bool has_tiles) {
  if (width < 1 || width % kBlock != 0)
    return set_error("%s: its channels, %d, must be multiples of %d", name, width, kBlock);
  return check_matrix(name, *w.gate, width, m.hidden, has_tiles) ||
                 check_matrix(name, *w.up, width, m.hidden, has_tiles) ||
                 check_matrix(name, *w.down, m.hidden, width, has_tiles)
             ? -1
             : 0;
}

int check_experts(const srt_model &m, const srt_experts &e, bool has_tiles) {
  if (check_rule(e) != 0 || check_shape("router", e.router, e.count, m.hidden) != 0) return -1;
  if (is_quantized(e.router.format) || e.router.bias != nullptr)
    return set_error("the router is quantised, or its bias not router_bias");
  for (int i = 0; i < e.count; i++) {
    if (check_mlp("an expert", m, {e.gate + i, e.up + i, e.down + i}, e.width, has_tiles) != 0)
      return -1;
    if (e.gate[i].format != e.gate->format || e.up[i].format != e.up->format ||
        e.down[i].format != e.down->format)
      return set_error("expert %d has another format than expert 0", i);
  }
  if (e.shared_gate.n == 0) return 0;
  const MlpWeights shared{&e.shared_gate, &e.shared_up, &e.shared_down};
  return check_mlp("the shared expert", m, shared, e.shared_gate.n, has_tiles);
}

int check_layer(const srt_model &m, const srt_layer &layer, bool has_tiles) {
  const auto check_matrix = [&](const char *name, const srt_matrix &w, int n, int k) {
    return srt::check_matrix(name, w, n, k, has_tiles);
  };
  const int q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  if (check_matrix("q", layer.q, q, m.hidden) || check_matrix("k", layer.k, kv, m.hidden) ||
      check_matrix("v", layer.v, kv, m.hidden) || check_matrix("o", layer.o, m.hidden, q))
    return -1;
  if (layer.experts ? check_experts(m, *layer.experts, has_tiles) != 0
                    : check_mlp("the MLP", m, {&layer.gate, &layer.up, &layer.down},
                                m.intermediate, has_tiles) != 0)
    return -1;
  if (layer.k_pool == nullptr || layer.v_pool == nullptr) return set_error("a layer has no pool");
  return 0;
}

int check_heads(const srt_model &m) {
  if (!supports_head_dim(m.head_dim)) return set_error("head size %d", m.head_dim);
  if (m.kv_heads < 1 || m.heads % m.kv_heads != 0 || m.heads / m.kv_heads > kUnitRows)
    return set_error("%d heads cannot share %d kv heads", m.heads, m.kv_heads);
  if (m.kv_format != SRT_F16 && m.kv_format != SRT_F32 && m.kv_format != SRT_I16)
    return set_error("kv_format is neither F16 nor F32 nor I16");
  return 0;
}

}  // namespace

bool supports_head_dim(int head_dim) {
  constexpr int kSizes[] = {16, 32, 64, 80, 96, 128, 256};
  return std::find(std::begin(kSizes), std::end(kSizes), head_dim) != std::end(kSizes);
}

int check_activation_bits(int32_t bits) {
  const bool is_known = bits == 0 || bits == 8 || bits == 12 || bits == 16;
  return is_known ? 0 : set_error("activations of %d bits", bits);
}

int check_model(const srt_model &m, bool has_tiles) {
  if (check_heads(m) != 0) return -1;
  for (const int32_t bits : m.activation_bits)
    if (check_activation_bits(bits) != 0) return -1;
  if (m.hidden % 16 != 0) return set_error("hidden (%d) must be a multiple of 16", m.hidden);
  for (const float scale : {m.embed_scale, m.residual_scale, m.logit_scale})
    if (!(scale > 0 && std::isfinite(scale))) return set_error("a scale is %g, not above 0", scale);
  for (int i = 0; i < m.num_layers; i++)
    if (check_layer(m, m.layers[i], has_tiles) != 0) return -1;
  return check_shape("embed", m.embed, m.vocab, m.hidden) ||
                 check_shape("head", m.head, m.vocab, m.hidden) ||
                 check_tiles("head", m.head, has_tiles)
             ? -1
             : 0;
}

namespace {

// The last KV entries of a row are where its tokens are written.
int check_out_slots(const srt_batch &b) {
  for (int r = 0; r < b.num_rows; r++) {
    const int first = b.qo_indptr[r], tokens = b.qo_indptr[r + 1] - first;
    const int32_t *own = b.kv_indices + b.kv_indptr[r + 1] - tokens;
    if (!std::equal(own, own + tokens, b.out_slots + first))
      return set_error("row %d: out_slots are not the last of its kv_indices", r);
  }
  return 0;
}

int check_embeds(const srt_batch &b, int tokens) {
  if (b.num_embeds < 0 || b.num_embeds > tokens)
    return set_error("num_embeds is %d", b.num_embeds);
  if (b.num_embeds > 0 && (b.embed_tokens == nullptr || b.embeds == nullptr))
    return set_error("embeds are missing");
  if (check_range("embed_tokens", b.embed_tokens, b.num_embeds, 0, tokens) != 0) return -1;
  for (int e = 1; e < b.num_embeds; e++)
    if (b.embed_tokens[e] <= b.embed_tokens[e - 1])
      return set_error("embed_tokens[%d] does not ascend", e);
  return 0;
}

int check_suppressed(const srt_batch &b) {
  if (b.suppress_indptr == nullptr) return 0;
  for (int s = 0; s < b.num_samples; s++)
    if (b.suppress_indptr[s] < 0 || b.suppress_indptr[s + 1] < b.suppress_indptr[s])
      return set_error("suppress_indptr: sample %d", s);
  return 0;
}

// Rows may be empty, but have no more than `most` entries.
int check_lists(const char *field, const int32_t *indptr, int rows, int most) {
  if (indptr[0] != 0) return set_error("%s does not begin with 0", field);
  for (int i = 0; i < rows; i++)
    if (indptr[i + 1] < indptr[i] || indptr[i + 1] - int64_t(indptr[i]) > most)
      return set_error("%s: row %d has a length that is not in [0, %d]", field, i, most);
  return 0;
}

int check_adjusted(const srt_batch &b, int vocab) {
  if (b.adjust_indptr == nullptr) return 0;
  if (check_lists("adjust_indptr", b.adjust_indptr, b.num_samples, vocab) != 0) return -1;
  const int count = b.adjust_indptr[b.num_samples];
  if (check_range("adjust_ids", b.adjust_ids, count, 0, vocab) != 0) return -1;
  for (int i = 0; i < count; i++) {
    if (!(b.adjust_repeat[i] > 0 && std::isfinite(b.adjust_repeat[i])))
      return set_error("adjust_repeat[%d] is not a positive number", i);
    if (!std::isfinite(b.adjust_add[i])) return set_error("adjust_add[%d] is not finite", i);
  }
  return 0;
}

int check_details(const srt_batch &b, int vocab) {
  if (b.num_details == 0) return 0;
  const int asked = b.num_samples + b.num_logprobs;
  if (b.num_details < 0 || b.num_details > asked)
    return set_error("num_details is %d", b.num_details);
  if (check_range("detail_rows", b.detail_rows, b.num_details, 0, asked) != 0) return -1;
  for (int d = 1; d < b.num_details; d++)
    if (b.detail_rows[d] <= b.detail_rows[d - 1])
      return set_error("detail_rows[%d] does not ascend", d);
  if (check_lists("top_indptr", b.top_indptr, b.num_details, vocab) ||
      check_lists("detail_indptr", b.detail_indptr, b.num_details, INT32_MAX))
    return -1;
  return check_range("detail_ids", b.detail_ids, b.detail_indptr[b.num_details], 0, vocab);
}

}  // namespace

int check_sampling(const srt_batch &b, int vocab) {
  return check_suppressed(b) || check_adjusted(b, vocab) || check_details(b, vocab) ? -1 : 0;
}

int check_batch(const srt_model &m, const srt_batch &b) {
  if (b.num_rows < 1) return set_error("num_rows is %d", b.num_rows);
  if (check_indptr("qo_indptr", b.qo_indptr, b.num_rows) ||
      check_indptr("kv_indptr", b.kv_indptr, b.num_rows))
    return -1;
  const int tokens = b.qo_indptr[b.num_rows];
  if (tokens != b.num_tokens) return set_error("num_tokens is not qo_indptr's last");
  for (int r = 0; r < b.num_rows; r++)
    if (b.kv_indptr[r + 1] - b.kv_indptr[r] < b.qo_indptr[r + 1] - b.qo_indptr[r])
      return set_error("row %d has more tokens than KV", r);
  return check_range("input_ids", b.input_ids, tokens, 0, m.vocab) ||
                 check_range("positions", b.positions, tokens, 0, INT32_MAX) ||
                 check_range("out_slots", b.out_slots, tokens, 0, m.num_slots) ||
                 check_range("kv_indices", b.kv_indices, b.kv_indptr[b.num_rows], 0, m.num_slots) ||
                 check_range("sample_tokens", b.sample_tokens, b.num_samples, 0, tokens) ||
                 check_range("logprob_tokens", b.logprob_tokens, b.num_logprobs, 0, tokens) ||
                 check_range("logprob_targets", b.logprob_targets, b.num_logprobs, 0, m.vocab) ||
                 check_out_slots(b) || check_embeds(b, tokens) || check_sampling(b, m.vocab)
             ? -1
             : 0;
}

}  // namespace srt
