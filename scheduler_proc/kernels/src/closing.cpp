// How few tokens of a vocabulary lead from the states of a grammar's automaton to acceptance.
//
// The states that matter at a position are found by a breadth-first search over tokens: each step
// of it is a walk of the vocabulary's trie. The search is bounded by what it walks.
#include <algorithm>
#include <climits>
#include <new>
#include <vector>

#include "error.h"
#include "srt_kernels.h"
#include "token_walk.h"

namespace {

constexpr int32_t kUnknown = INT32_MAX;

struct Edge {
  int32_t from, to;
};

// The sources of the edges to each state: `sources[indptr[s] .. indptr[s+1])`.
struct Reversed {
  std::vector<int32_t> indptr, sources;

  Reversed(const std::vector<Edge> &edges, int32_t num_states)
      : indptr(size_t(num_states) + 1, 0), sources(edges.size()) {
    for (const Edge &edge : edges) indptr[size_t(edge.to) + 1]++;
    for (int32_t s = 0; s < num_states; s++) indptr[size_t(s) + 1] += indptr[size_t(s)];
    std::vector<int32_t> next(indptr.begin(), indptr.end() - 1);
    for (const Edge &edge : edges) sources[size_t(next[size_t(edge.to)]++)] = edge.from;
  }
};

// Writes how many edges lead from each state to one of `ends`, kUnknown where none do; returns the
// states that have a number, the nearest first.
std::vector<int32_t> distances_to(const std::vector<int32_t> &ends, const Reversed &reversed,
                                  int32_t *distances) {
  std::fill_n(distances, reversed.indptr.size() - 1, kUnknown);
  std::vector<int32_t> order = ends;
  for (int32_t state : ends) distances[state] = 0;
  for (size_t i = 0; i < order.size(); i++) {
    const int32_t state = order[i];
    for (int32_t e = reversed.indptr[size_t(state)]; e < reversed.indptr[size_t(state) + 1]; e++) {
      const int32_t source = reversed.sources[size_t(e)];
      if (distances[source] != kUnknown) continue;
      distances[source] = distances[state] + 1;
      order.push_back(source);
    }
  }
  return order;
}

std::vector<int32_t> accepting_states(const srt_dfa &dfa, const uint8_t *accepting) {
  std::vector<int32_t> found;
  for (int32_t state = 0; state < dfa.num_states; state++)
    if (accepting[state]) found.push_back(state);
  return found;
}

// The bytes that the states' shortest texts begin with; any byte where a text is empty or unknown.
std::vector<uint8_t> next_bytes(const srt_dfa &dfa, const int32_t *bytes) {
  std::vector<int32_t> of_class(size_t(dfa.num_classes), -1);
  for (int byte = 255; byte >= 0; byte--) of_class[dfa.byte_class[byte]] = byte;
  std::vector<uint8_t> found(size_t(dfa.num_states), 0);
  for (int32_t state = 0; state < dfa.num_states; state++) {
    if (bytes[state] == 0 || bytes[state] == kUnknown) continue;
    const int32_t *row = dfa.transitions + size_t(state) * size_t(dfa.num_classes);
    for (int32_t c = 0; c < dfa.num_classes; c++)
      if (row[c] >= 0 && of_class[size_t(c)] >= 0 && bytes[row[c]] == bytes[state] - 1) {
        found[size_t(state)] = uint8_t(of_class[size_t(c)]);
        break;
      }
  }
  return found;
}

// The child, by `byte`, of the trie's node whose subtree is [first, last), its children from
// `first` on; -1 if there is none.
int32_t child(const srt_trie &trie, int32_t first, int32_t last, uint8_t byte) {
  for (int32_t node = first; node < last; node = std::max(trie.ends[node], node + 1))
    if (trie.bytes[node] == byte) return node;
  return -1;
}

// The fewest tokens that spell the shortest text of `state`, those of nearer states being known.
int32_t fewest_for_text(const srt_trie &trie, const srt_dfa &dfa, const int32_t *bytes,
                        const uint8_t *next, const int32_t *tokens, int32_t state) {
  int32_t fewest = kUnknown, here = state, first = 0, last = trie.num_nodes;
  while (bytes[here] > 0) {
    const uint8_t byte = next[here];
    const int32_t node = child(trie, first, last, byte);
    if (node < 0) break;
    here = dfa.transitions[size_t(here) * size_t(dfa.num_classes) + dfa.byte_class[byte]];
    if (here < 0) break;  // only where a class has no byte, in damaged tables
    const bool is_token = trie.token_indptr[node + 1] > trie.token_indptr[node];
    const bool may_end = dfa.token_ends == nullptr || dfa.token_ends[here];
    if (is_token && may_end && tokens[here] != kUnknown)
      fewest = std::min(fewest, tokens[here] + 1);
    first = node + 1;
    last = std::min(trie.ends[node], trie.num_nodes);
  }
  return fewest;
}

// Finds what can be reached from a state, and how near that is to acceptance.
class Region {
 public:
  Region(const srt_trie &trie, const srt_dfa &dfa, const uint8_t *accepting,
         const int32_t *at_least)
      : trie_(trie),
        dfa_(dfa),
        accepting_(accepting),
        at_least_(at_least),
        path_(size_t(trie.max_depth) + 1, 0),
        depths_(size_t(dfa.num_states), -1),
        stamps_(size_t(dfa.num_states), -1) {}

  // 0, 1 if it would visit more than `allowance` nodes, or -1.
  int search(int32_t start, int32_t left, int64_t allowance) {
    order_.push_back(start);
    depths_[size_t(start)] = 0;
    for (size_t i = 0; i < order_.size(); i++) {
      const int32_t state = order_[i], depth = depths_[size_t(state)] + 1;
      if (depth > left || (accepting_[state] && state != start)) continue;
      const auto found = [&](int32_t node, int32_t target) {
        if (trie_.token_indptr[node + 1] <= trie_.token_indptr[node]) return true;
        if (stamps_[size_t(target)] == state || at_least_[target] > left - depth) return true;
        stamps_[size_t(target)] = state;
        edges_.push_back({state, target});
        if (depths_[size_t(target)] < 0) {
          depths_[size_t(target)] = depth;
          order_.push_back(target);
        }
        return true;
      };
      std::fill(path_.begin(), path_.end(), state);
      const int64_t visited = srt::walk_tokens(trie_, dfa_, path_.data(), allowance, found);
      if (visited < 0) return -1;
      if ((allowance -= visited + 1) < 0) return 1;
    }
    return 0;
  }

  void write(int32_t *distances) const {
    std::vector<int32_t> ends;
    for (int32_t state : order_)
      if (accepting_[state]) ends.push_back(state);
    distances_to(ends, Reversed(edges_, dfa_.num_states), distances);
  }

 private:
  const srt_trie &trie_;
  const srt_dfa &dfa_;
  const uint8_t *accepting_;
  const int32_t *at_least_;
  std::vector<int32_t> path_, depths_, stamps_, order_;
  std::vector<Edge> edges_;
};

}  // namespace

int32_t srt_closing_tables(const srt_trie *trie, const srt_dfa *dfa, const uint8_t *accepting,
                           int32_t *bytes, int32_t *tokens) {
  if (srt::check_tables(*trie, *dfa, 0) != 0) return -1;
  try {
    std::vector<Edge> edges;
    for (int32_t state = 0; state < dfa->num_states; state++)
      for (int32_t c = 0; c < dfa->num_classes; c++) {
        const int32_t to = dfa->transitions[size_t(state) * size_t(dfa->num_classes) + size_t(c)];
        if (to == -1) continue;
        if (uint32_t(to) >= uint32_t(dfa->num_states))
          return srt::set_error("a transition to state %d", to);
        edges.push_back({state, to});
      }
    const std::vector<int32_t> order = distances_to(
        accepting_states(*dfa, accepting), Reversed(edges, dfa->num_states), bytes);
    const std::vector<uint8_t> next = next_bytes(*dfa, bytes);
    std::fill_n(tokens, size_t(dfa->num_states), kUnknown);
    for (int32_t state : order)
      tokens[state] = bytes[state] == 0
                          ? 0
                          : fewest_for_text(*trie, *dfa, bytes, next.data(), tokens, state);
    return 0;
  } catch (const std::bad_alloc &) {
    return srt::set_error("no memory for the tables of %d states", dfa->num_states);
  }
}

int32_t srt_closing_region(const srt_trie *trie, const srt_dfa *dfa, const uint8_t *accepting,
                           const int32_t *at_least, int32_t state, int32_t left, int64_t allowance,
                           int32_t *distances) {
  if (srt::check_tables(*trie, *dfa, state) != 0) return -1;
  try {
    Region region(*trie, *dfa, accepting, at_least);
    const int rc = region.search(state, left, allowance);
    if (rc == 0) region.write(distances);
    return rc;
  } catch (const std::bad_alloc &) {
    return srt::set_error("no memory for a search among %d states", dfa->num_states);
  }
}
