"""The vocabulary that grammars see, and its trie, compared with the plain list of tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar.trie import TokenTrie, build_trie
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.files.model_files import resolve_model
from srt.files.vocab import load_vocab
from tests.scheduler_proc.grammar.automata import ODD, mask_ids, real_vocabulary

token_lists = st.lists(st.binary(min_size=1, max_size=6), max_size=30)


def paths(trie: TokenTrie) -> list[bytes]:
    """The bytes that lead to each node."""
    found: list[bytes] = []
    path = b""
    for byte, depth in zip(trie.bytes.tolist(), trie.depths.tolist(), strict=True):
        assert 1 <= depth <= len(path) + 1
        path = path[: depth - 1] + bytes([byte])
        found.append(path)
    return found


@given(token_lists)
def test_the_trie_has_each_prefix_once_and_each_token_at_its_node(tokens: list[bytes]) -> None:
    trie = build_trie([(data, i) for i, data in enumerate(tokens)])
    nodes = paths(trie)
    assert nodes == sorted({data[:n] for data in tokens for n in range(1, len(data) + 1)})
    for node, path in enumerate(nodes):
        first, last = trie.token_indptr[node : node + 2]
        ids = trie.token_ids[first:last].tolist()
        assert ids == [i for i, data in enumerate(tokens) if data == path]
        below = [i for i, other in enumerate(nodes) if other.startswith(path)]
        assert below == list(range(node, trie.ends[node]))
    assert trie.max_depth == max(map(len, tokens), default=0)
    assert [nodes[i] for i in trie.token_nodes] == sorted(tokens)


@given(token_lists)
def test_levels_list_the_nodes_of_a_depth_and_their_parents(tokens: list[bytes]) -> None:
    trie = build_trie([(data, i) for i, data in enumerate(tokens)])
    nodes = [*paths(trie), b""]
    for depth, level in enumerate(trie.levels, 1):
        assert level.nodes.tolist() == np.flatnonzero(trie.depths == depth).tolist()
        assert [nodes[p] for p in level.parents] == [nodes[n][:-1] for n in level.nodes]
    assert sum(len(level.nodes) for level in trie.levels) == trie.num_nodes


class TestFacts:
    def test_special_eos_and_empty_tokens_are_not_ordinary(self) -> None:
        tokens = [b"<s>", b"a", b"", b"</s>", b"b"]
        vocabulary = TokenVocabulary.from_tokens(tokens, special_ids=[0], eos_ids=[3, 3, 9])
        assert vocabulary.token_bytes == [b"", b"a", b"", b"", b"b"]
        assert vocabulary.eos_ids == (3,)
        assert vocabulary.special_ids == {0, 3}
        assert vocabulary.trie.token_ids.tolist() == [1, 4]
        assert mask_ids(vocabulary.eos_mask) == [3]
        assert mask_ids(vocabulary.text_mask) == [1, 3, 4]

    def test_bytes_without_a_token_and_bytes_without_one_of_their_own(self) -> None:
        assert set(range(256)) - set(ODD.absent_bytes) == set(b"abc\xc3\xa9")
        assert bytes(np.flatnonzero(ODD.single_bytes).tolist()) == b"ab\xc3"

    def test_an_empty_vocabulary(self) -> None:
        vocabulary = TokenVocabulary.from_tokens([b"", b""], special_ids=[], eos_ids=[])
        assert vocabulary.trie.num_nodes == 0
        assert vocabulary.trie.levels == []
        assert len(vocabulary.absent_bytes) == 256
        assert mask_ids(vocabulary.text_mask) == []

    @given(st.sets(st.integers(0, 99)))
    def test_packed_masks(self, ids: set[int]) -> None:
        vocabulary = TokenVocabulary.from_tokens([b"x"] * 100, special_ids=[], eos_ids=[])
        mask = vocabulary.pack(ids)
        assert mask.dtype == np.uint32
        assert len(mask) == 4
        assert [i for i in range(128) if mask[i // 32] >> (i % 32) & 1] == sorted(ids)


class TestFingerprint:
    BASE = ([b"a", b"bc", b"</s>"], [2], [2])

    def test_it_is_that_of_what_grammars_see(self) -> None:
        one = TokenVocabulary.from_tokens(*self.BASE)
        other = TokenVocabulary.from_tokens([b"a", b"bc", b"other"], [2], [2])
        assert one.fingerprint == other.fingerprint
        assert len(one.fingerprint) == 32

    @pytest.mark.parametrize(
        ("tokens", "special", "eos"),
        [
            ([b"ab", b"c", b"</s>"], [2], [2]),
            ([b"bc", b"a", b"</s>"], [2], [2]),
            ([b"a", b"bc", b"</s>"], [2], []),
            ([b"a", b"bc", b"</s>"], [1, 2], [2]),
            ([b"a", b"bc", b"</s>", b""], [2], [2]),
        ],
    )
    def test_it_changes_with_it(
        self, tokens: list[bytes], special: list[int], eos: list[int]
    ) -> None:
        base = TokenVocabulary.from_tokens(*self.BASE)
        assert TokenVocabulary.from_tokens(tokens, special, eos).fingerprint != base.fingerprint


def test_the_real_vocabulary() -> None:
    vocabulary = real_vocabulary()
    vocab = load_vocab(resolve_model("smollm2"))
    trie = vocabulary.trie
    ordinary = [i for i, t in enumerate(vocab.token_bytes) if t and i not in vocab.special_ids]
    assert sorted(trie.token_ids.tolist()) == ordinary
    nodes = paths(trie)
    assert [nodes[i] for i in trie.token_nodes] == [vocab.token_bytes[i] for i in trie.token_ids]
    assert vocabulary.vocab_size == 49152
    assert vocabulary.mask_width == 1536
    present = set(b"".join(vocab.token_bytes[i] for i in ordinary))
    assert set(vocabulary.absent_bytes) == set(range(256)) - present
    assert len(vocabulary.absent_bytes) == 21
