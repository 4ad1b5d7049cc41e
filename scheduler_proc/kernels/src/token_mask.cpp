// The tokens that a grammar's automaton can read from a state: one walk of the vocabulary's trie.
//
// Nodes are in preorder, so a stack of states by depth is all that the walk remembers, and a node
// that the automaton cannot enter is skipped with its whole subtree in one step. Every index read
// from a table is checked before it is used: tables may come from a file.
#include <algorithm>
#include <new>
#include <vector>

#include "error.h"
#include "srt_kernels.h"

namespace {

// A lookup within bounds: 0 <= value < size.
bool within(int32_t value, int32_t size) { return uint32_t(value) < uint32_t(size); }

int check_tables(const srt_trie &trie, const srt_dfa &dfa, int32_t state) {
  if (trie.num_nodes < 0 || trie.num_tokens < 0 || trie.vocab < 1 || trie.max_depth < 0)
    return srt::set_error("a trie of %d nodes, %d tokens, %d ids and depth %d", trie.num_nodes,
                          trie.num_tokens, trie.vocab, trie.max_depth);
  if (dfa.num_states < 1 || dfa.num_classes < 1)
    return srt::set_error("an automaton of %d states and %d classes", dfa.num_states,
                          dfa.num_classes);
  if (!within(state, dfa.num_states))
    return srt::set_error("state %d is not in [0, %d)", state, dfa.num_states);
  for (int byte = 0; byte < 256; byte++)
    if (dfa.byte_class[byte] >= dfa.num_classes)
      return srt::set_error("byte %d is of class %d, not below %d", byte, dfa.byte_class[byte],
                            dfa.num_classes);
  return 0;
}

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

// `states`: [max_depth + 1], the state after each byte of the path; the first is the start.
int walk(const srt_trie &trie, const srt_dfa &dfa, int32_t *states, uint32_t *mask) {
  int32_t node = 0;
  while (node < trie.num_nodes) {
    const int32_t depth = trie.depths[node];
    if (depth < 1 || depth > trie.max_depth)
      return srt::set_error("node %d has depth %d", node, depth);
    const size_t row = size_t(states[depth - 1]) * size_t(dfa.num_classes);
    const int32_t next = dfa.transitions[row + dfa.byte_class[trie.bytes[node]]];
    if (next == -1) {
      const int32_t end = trie.ends[node];
      if (end <= node) return srt::set_error("the subtree of node %d ends at %d", node, end);
      node = end;
      continue;
    }
    if (!within(next, dfa.num_states)) return srt::set_error("a transition to state %d", next);
    states[depth] = next;
    if (dfa.token_ends == nullptr || dfa.token_ends[next])
      if (!set_tokens(trie, node, mask)) return srt::set_error("the tokens of node %d", node);
    node++;
  }
  return 0;
}

}  // namespace

int32_t srt_token_mask(const srt_trie *trie, const srt_dfa *dfa, int32_t state, uint32_t *mask) {
  if (check_tables(*trie, *dfa, state) != 0) return -1;
  try {
    // Filled with a valid state, so that depths out of order cannot lead outside the table.
    std::vector<int32_t> states(size_t(trie->max_depth) + 1, state);
    std::fill_n(mask, (size_t(trie->vocab) + 31) / 32, 0);
    return walk(*trie, *dfa, states.data(), mask);
  } catch (const std::bad_alloc &) {
    return srt::set_error("no memory for a stack of %d states", trie->max_depth);
  }
}
