// Random tries and automata for srt_token_mask and srt_closing_*: valid ones, whose masks and
// distances are checked token by token, and damaged ones, which they may accept or refuse without
// going outside their arrays.
#pragma once
#include <algorithm>

#include "checks.h"

namespace driver {

struct Tables {
  int nodes = below(12), vocab = 1 + below(70), max_depth = 0;
  int states = 1 + below(5), classes = 1 + below(3);
  std::vector<uint8_t> bytes, byte_class, token_ends, accepting;
  std::vector<int32_t> depths, ends, token_indptr{0}, token_ids, transitions;
  std::vector<int32_t> num_bytes, spelled, distances;
  std::vector<uint32_t> mask;

  Tables() : byte_class(256), mask((vocab + 31) / 32, 0xdeadbeef) {
    for (int i = 0; i < nodes; i++) add_node();
    for (int i = 0; i < nodes; i++) ends.push_back(end_of(i));
    for (int i = 0; i < states * classes; i++) transitions.push_back(below(states + 1) - 1);
    for (uint8_t &c : byte_class) c = uint8_t(below(classes));
    for (int i = 0; i < states; i++) token_ends.push_back(uint8_t(below(2)));
    for (int i = 0; i < states; i++) accepting.push_back(uint8_t(below(2)));
    for (auto *table : {&num_bytes, &spelled, &distances}) table->resize(states);
  }

  void add_node() {
    depths.push_back(depths.empty() ? 1 : 1 + below(depths.back() + 1));
    max_depth = std::max(max_depth, int(depths.back()));
    bytes.push_back(uint8_t(below(256)));
    for (int i = below(3); i > 0; i--) token_ids.push_back(below(vocab));
    token_indptr.push_back(int32_t(token_ids.size()));
  }

  // The next node that is not below node i.
  int end_of(int i) const {
    int end = i + 1;
    while (end < nodes && depths[end] > depths[i]) end++;
    return end;
  }

  void damage() {
    for (auto *table : {&depths, &ends, &token_indptr, &token_ids, &transitions})
      for (int32_t &value : *table)
        if (one_in(8)) value = one_in(2) ? int32_t(rng()) : value + below(5) - 2;
    if (one_in(4)) byte_class[below(256)] = uint8_t(below(256));
  }

  srt_trie trie() const {
    return {nodes,         int32_t(token_ids.size()), vocab,
            max_depth,     bytes.data(),              depths.data(),
            ends.data(),   token_indptr.data(),       token_ids.data()};
  }

  srt_dfa dfa(bool everywhere) const {
    return {states, classes, transitions.data(), byte_class.data(),
            everywhere ? nullptr : token_ends.data()};
  }

  int run(int state, bool everywhere, const int32_t *distances = nullptr, int most = 0) {
    const srt_trie t = trie();
    const srt_dfa d = dfa(everywhere);
    return srt_token_mask(&t, &d, state, distances, most, mask.data());
  }

  int run_closing_tables(bool everywhere) {
    const srt_trie t = trie();
    const srt_dfa d = dfa(everywhere);
    return srt_closing_tables(&t, &d, accepting.data(), num_bytes.data(), spelled.data());
  }

  int run_closing_region(int state, bool everywhere, int left, int64_t allowance) {
    const srt_trie t = trie();
    const srt_dfa d = dfa(everywhere);
    const std::vector<int32_t> at_least(states, 0);
    return srt_closing_region(&t, &d, accepting.data(), at_least.data(), state, left, allowance,
                              distances.data());
  }

  // The state that the bytes from the root to node i lead to; -1 if there is none.
  int state_at(int i, int start) const {
    int parent = i - 1;
    while (parent >= 0 && depths[parent] != depths[i] - 1) parent--;
    const int above = depths[i] == 1 ? start : state_at(parent, start);
    return above < 0 ? -1 : transitions[above * classes + byte_class[bytes[i]]];
  }

  // The fewest tokens from each state to an accepting one, INT32_MAX where there are none.
  std::vector<int32_t> expected_distances(bool everywhere) const {
    std::vector<int32_t> found(states, INT32_MAX);
    for (int s = 0; s < states; s++)
      if (accepting[s]) found[s] = 0;
    for (int round = 0; round < states; round++)
      for (int s = 0; s < states; s++)
        for (int i = 0; i < nodes; i++) {
          const int next = state_at(i, s);
          if (next < 0 || !(everywhere || token_ends[next]) || found[next] == INT32_MAX) continue;
          if (token_indptr[i] < token_indptr[i + 1]) found[s] = std::min(found[s], found[next] + 1);
        }
    return found;
  }

  std::vector<uint32_t> expected(int start, bool everywhere) const {
    std::vector<uint32_t> bits(mask.size());
    for (int i = 0; i < nodes; i++) {
      const int state = state_at(i, start);
      if (state < 0 || !(everywhere || token_ends[state])) continue;
      for (int t = token_indptr[i]; t < token_indptr[i + 1]; t++)
        bits[token_ids[t] / 32] |= 1u << (token_ids[t] % 32);
    }
    return bits;
  }
};

inline void check_closing(Tables &tables, int state, bool everywhere) {
  check(tables.run_closing_tables(everywhere) == 0, "srt_closing_tables");
  const std::vector<int32_t> right = tables.expected_distances(everywhere);
  for (int s = 0; s < tables.states; s++) {
    check((tables.num_bytes[s] == 0) == bool(tables.accepting[s]), "no bytes to acceptance");
    check(tables.spelled[s] >= right[s], "the tokens of a shortest text");
  }
  check(tables.run_closing_region(state, everywhere, 100, 1 << 20) == 0, "srt_closing_region");
  check(tables.distances[state] == right[state], "the distance");
  check(tables.run_closing_region(state, everywhere, 100, 0) == 1, "past the allowance");
  check(tables.run(state, everywhere, right.data(), -1) == 0, "srt_token_mask within a distance");
  for (uint32_t word : tables.mask) check(word == 0, "a mask of nothing");
}

inline void run_masks() {
  doing = "token masks";
  for (int i = 0; i < 2000; i++) {
    Tables tables;
    const int state = below(tables.states);
    const bool everywhere = one_in(2);
    check(tables.run(state, everywhere) == 0, "srt_token_mask");
    check(same_bits(tables.mask, tables.expected(state, everywhere)), "the mask");
    check_closing(tables, state, everywhere);
    for (int outside : {-1, tables.states})
      check_refused(tables.run(outside, everywhere) == -1, "a state outside the automaton");
    tables.damage();
    tables.run_closing_tables(everywhere);
    tables.run_closing_region(state, everywhere, 1 + below(5), below(200));
    tables.run(one_in(10) ? int(rng()) : state, everywhere);
  }
}

}  // namespace driver
