// Walks a vocabulary's trie and an automaton together.
//
// Nodes are in preorder, so a stack of states by depth is all that the walk remembers, and a node
// that the automaton cannot enter is skipped with its whole subtree in one step. Every index read
// from a table is checked before it is used: tables may come from a file.
#ifndef SRT_TOKEN_WALK_H
#define SRT_TOKEN_WALK_H

#include <cstddef>
#include <cstdint>

#include "error.h"
#include "srt_kernels.h"

namespace srt {

// 0, or -1 with an error: whether sizes, classes and the state are sound.
int check_tables(const srt_trie &trie, const srt_dfa &dfa, int32_t state);

// Calls `found(node, state)` for each node where a token may end, until it returns false, which is
// an error. `path`: [max_depth + 1], the state after each byte; all must be the start, so that
// depths out of order cannot lead outside the table. Returns how many nodes it has visited, at most
// one more than `most`; -1 with an error.
template <typename Found>
int64_t walk_tokens(const srt_trie &trie, const srt_dfa &dfa, int32_t *path, int64_t most,
                    Found found) {
  int64_t visited = 0;
  int32_t node = 0;
  while (node < trie.num_nodes && visited <= most) {
    visited++;
    const int32_t depth = trie.depths[node];
    if (depth < 1 || depth > trie.max_depth)
      return set_error("node %d has depth %d", node, depth);
    const size_t row = size_t(path[depth - 1]) * size_t(dfa.num_classes);
    const int32_t next = dfa.transitions[row + dfa.byte_class[trie.bytes[node]]];
    if (next == -1) {
      const int32_t end = trie.ends[node];
      if (end <= node) return set_error("the subtree of node %d ends at %d", node, end);
      node = end;
      continue;
    }
    if (uint32_t(next) >= uint32_t(dfa.num_states))
      return set_error("a transition to state %d", next);
    path[depth] = next;
    if (dfa.token_ends == nullptr || dfa.token_ends[next])
      if (!found(node, next)) return set_error("the tokens of node %d", node);
    node++;
  }
  return visited;
}

}  // namespace srt

#endif
