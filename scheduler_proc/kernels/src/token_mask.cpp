// The tokens that a grammar's automaton can read from a state: one walk of the vocabulary's trie.
#include <algorithm>
#include <new>
#include <vector>

#include "error.h"
#include "srt_kernels.h"
#include "token_walk.h"

namespace {

// A lookup within bounds: 0 <= value < size.
bool within(int32_t value, int32_t size) { return uint32_t(value) < uint32_t(size); }

// Sets the bits of node's tokens; false if the node's range or an id is out of bounds.
bool set_tokens(const srt_trie &trie, int32_t node, uint32_t *mask) {
  const int32_t first = trie.token_indptr[node], last = trie.token_indptr[node + 1];
  if (first < 0 || last > trie.num_tokens) return false;
  for (int32_t i = first; i < last; i++) {
    const int32_t id = trie.token_ids[i];
    if (!within(id, trie.vocab)) return false;
    mask[id / 32] |= uint32_t(1) << (id % 32);
  }
  return true;
}

}  // namespace

namespace srt {

int check_tables(const srt_trie &trie, const srt_dfa &dfa, int32_t state) {
  if (trie.num_nodes < 0 || trie.num_tokens < 0 || trie.vocab < 1 || trie.max_depth < 0)
    return set_error("a trie of %d nodes, %d tokens, %d ids and depth %d", trie.num_nodes,
                          trie.num_tokens, trie.vocab, trie.max_depth);
  if (dfa.num_states < 1 || dfa.num_classes < 1)
    return set_error("an automaton of %d states and %d classes", dfa.num_states,
                          dfa.num_classes);
  if (!within(state, dfa.num_states))
    return set_error("state %d is not in [0, %d)", state, dfa.num_states);
  for (int byte = 0; byte < 256; byte++)
    if (dfa.byte_class[byte] >= dfa.num_classes)
      return set_error("byte %d is of class %d, not below %d", byte, dfa.byte_class[byte],
                            dfa.num_classes);
  return 0;
}

}  // namespace srt

int32_t srt_token_mask(const srt_trie *trie, const srt_dfa *dfa, int32_t state,
                       const int32_t *distances, int32_t most, uint32_t *mask) {
  if (srt::check_tables(*trie, *dfa, state) != 0) return -1;
  try {
    std::vector<int32_t> path(size_t(trie->max_depth) + 1, state);
    std::fill_n(mask, (size_t(trie->vocab) + 31) / 32, 0);
    const auto found = [&](int32_t node, int32_t next) {
      return (distances != nullptr && distances[next] > most) || set_tokens(*trie, node, mask);
    };
    const int64_t visited = srt::walk_tokens(*trie, *dfa, path.data(), trie->num_nodes, found);
    return visited < 0 ? -1 : 0;
  } catch (const std::bad_alloc &) {
    return srt::set_error("no memory for a stack of %d states", trie->max_depth);
  }
}
