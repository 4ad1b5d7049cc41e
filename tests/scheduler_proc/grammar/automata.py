"""Automata and vocabularies for tests, and what they allow, computed in a slow and obvious way."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import numpy as np
from hypothesis import strategies as st

from scheduler_proc.grammar.regex.dfa import ByteDFA
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.files.model_files import resolve_model
from srt.files.vocab import load_vocab

Rows = Sequence[dict[int, int]]  # per state: byte -> next state

# Awkward in different ways: no byte of its own for "c" and 0xA9, two ids for "ab", and "" twice.
ODD_TOKENS = [b"</s>", b"a", b"b", b"ab", b"bc", b"ab", b"\xc3\xa9", b"", b"abca", b"\xc3", b""]
ODD = TokenVocabulary.from_tokens(ODD_TOKENS, special_ids=[0], eos_ids=[0])
ODD_WITHOUT_EOS = TokenVocabulary.from_tokens(ODD_TOKENS, special_ids=[0], eos_ids=[])
ALPHABET = b"abc\xc3\xa9"
# Every byte is a token, and so are some words.
BYTES = TokenVocabulary.from_tokens(
    [bytes([i]) for i in range(256)] + [b"ab", b"abc", b"ba", b'{"', b"<eos>", b"<pad>"],
    special_ids=[260, 261],
    eos_ids=[260],
)
EOS = BYTES.eos_ids[0]


@cache
def real_vocabulary() -> TokenVocabulary:
    """The vocabulary of SmolLM2."""
    return TokenVocabulary.from_vocab(load_vocab(resolve_model("smollm2")))


def make_dfa(rows: Rows, accepting: Iterable[int]) -> ByteDFA:
    table = np.full((len(rows), 256), -1, np.int32)
    for state, row in enumerate(rows):
        for byte, target in row.items():
            table[state, byte] = target
    transitions, classes = np.unique(table, axis=1, return_inverse=True)
    flags = np.zeros(len(rows), np.bool_)
    flags[list(accepting)] = True
    return ByteDFA(np.ascontiguousarray(transitions), classes.reshape(-1).astype(np.uint8), flags)


def words_dfa(words: Iterable[bytes]) -> ByteDFA:
    """An automaton that accepts exactly these words."""
    rows: list[dict[int, int]] = [{}]
    accepting = []
    for word in words:
        state = 0
        for byte in word:
            if byte not in rows[state]:
                rows[state][byte] = len(rows)
                rows.append({})
            state = rows[state][byte]
        accepting.append(state)
    return make_dfa(rows, accepting)


def any_text_dfa() -> ByteDFA:
    return make_dfa([dict.fromkeys(range(256), 0)], [0])


def random_dfa(rng: np.random.Generator, num_states: int, density: float) -> ByteDFA:
    """A trimmed automaton over all bytes, in a few classes, with loops and branches."""
    classes = rng.integers(0, 12, 256)
    table = rng.integers(0, num_states, (num_states, 12))
    table[rng.random(table.shape) > density] = -1
    rows = [
        {byte: int(table[s, c]) for byte, c in enumerate(classes) if table[s, c] >= 0}
        for s in range(num_states)
    ]
    return live_dfa(rows, [num_states - 1, *np.flatnonzero(rng.random(num_states) < 0.2).tolist()])


def live_dfa(rows: Rows, accepting: Iterable[int]) -> ByteDFA:
    """An automaton of the states that can be reached and can reach acceptance. The start is made
    accepting if it cannot reach acceptance."""
    accepting = set(accepting)
    backwards: list[dict[int, int]] = [{} for _ in rows]
    for state, row in enumerate(rows):
        for target in row.values():
            backwards[target][state] = state
    found = _closure(rows, [0])
    accepting = accepting & found or {0}
    kept = found & _closure(backwards, accepting)
    order = sorted(kept)
    number = {state: i for i, state in enumerate(order)}
    new = [{b: number[t] for b, t in rows[s].items() if t in number} for s in order]
    return make_dfa(new, [number[s] for s in accepting])


def _closure(rows: Rows, seeds: Iterable[int]) -> set[int]:
    found, stack = set(seeds), list(seeds)
    while stack:
        for target in rows[stack.pop()].values():
            if target not in found:
                found.add(target)
                stack.append(target)
    return found


@st.composite
def dfas(draw: st.DrawFn, alphabet: bytes = ALPHABET, max_states: int = 6) -> ByteDFA:
    states = st.integers(0, draw(st.integers(0, max_states - 1)))
    row = st.dictionaries(st.sampled_from(alphabet), states, max_size=3)
    count = max_states
    rows = draw(st.lists(row, min_size=count, max_size=count))
    return live_dfa(rows, draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2)))


# ---- the slow and obvious way ------------------------------------------------------------------


def walk(dfa: ByteDFA, state: int, data: bytes) -> int:
    """The state after `data`, -1 if it cannot be read."""
    for byte in data:
        if state < 0:
            return -1
        state = int(dfa.transitions[state, dfa.byte_class[byte]])
    return state


def live_states(dfa: ByteDFA, vocabulary: TokenVocabulary) -> set[int]:
    """The states from which acceptance can be reached by tokens."""
    live = set(np.flatnonzero(dfa.accepting).tolist())
    tokens = [data for data in vocabulary.token_bytes if data]
    while True:
        more = {s for s in range(dfa.num_states) if any(walk(dfa, s, t) in live for t in tokens)}
        if more <= live:
            return live
        live |= more


def allowed_ids(
    dfa: ByteDFA, vocabulary: TokenVocabulary, state: int, live: set[int]
) -> Iterator[int]:
    """The ids of the tokens that may follow `state`, ascending."""
    for token, data in enumerate(vocabulary.token_bytes):
        if token in vocabulary.eos_ids:
            if dfa.accepting[state]:
                yield token
        elif data and walk(dfa, state, data) in live:
            yield token


def mask_ids(mask: np.ndarray) -> list[int]:
    """The ids whose bits are set, ascending."""
    ids: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return ids
