"""Patterns to compare with Python's `re`, and texts sampled from an automaton."""

import random
import re

import numpy as np
from hypothesis import strategies as st

from scheduler_proc.grammar.regex import DEAD, ByteDFA

# A few of each kind: cased, digits, blanks, newline, 2- to 4-byte characters, special case folding.
ALPHABET = "abAB1 \n_éÉſK€😀"

_ATOMS = [
    *"abAB1é€😀",
    *(".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\n", r"\.", r"\x61", r"\u00e9"),
    *("[ab]", "[^a]", "[a-b1]", r"[\d_]", r"[^\w]", "[é-😀]", r"[\s\S]", "[]a]", "[a-]", "[^é\n]"),
]
_ANCHORS = ["^", "$", r"\A", r"\Z"]
_BOUNDARIES = [r"\b", r"\B"]
_QUANTIFIERS = ["*", "+", "?", "{2}", "{,2}", "{1,3}", "{2,}", "*?", "+?", "??", "{1,2}?"]
_SCOPES = ["(", "(?:", "(?i:", "(?s:", "(?m:", "(?-i:", "(?i-s:", "(?P<x>"]


def _quantified(item: str, quantifier: str) -> str:
    return f"(?:{item}){quantifier}"


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.builds(_quantified, inner, st.sampled_from(_QUANTIFIERS)),
        st.builds(lambda scope, body: f"{scope}{body})", st.sampled_from(_SCOPES), inner),
    )


def _bodies(anchors: list[str]) -> st.SearchStrategy[str]:
    leaves = st.one_of(
        st.sampled_from(_ATOMS),
        st.builds(str.__add__, st.sampled_from(_ATOMS), st.sampled_from(_QUANTIFIERS)),
        st.sampled_from(anchors),
    )
    return st.recursive(leaves, _grow, max_leaves=6)


_BODIES = {has: _bodies(_ANCHORS + _BOUNDARIES if has else _ANCHORS) for has in (False, True)}
_FLAGS = st.sampled_from(["", "", "(?i)", "(?s)", "(?m)", "(?x)", "(?is)", "(?im)"])

TEXTS = st.text(ALPHABET, max_size=6)


@st.composite
def patterns(draw: st.DrawFn, unicode: bool = False, boundaries: bool = False) -> str:
    """A valid pattern that we support; group names are made unique."""
    body = draw(_BODIES[boundaries])
    for index in range(body.count("(?P<x>")):
        body = body.replace("(?P<x>", f"(?P<g{index}>", 1)
    return ("(?u)" if unicode else "") + draw(_FLAGS) + body


def reference(pattern: str) -> re.Pattern[str]:
    """The same pattern compiled by Python."""
    return re.compile(pattern, 0 if pattern.startswith("(?u)") else re.ASCII)


def sample(dfa: ByteDFA, rng: random.Random, max_free: int = 12) -> bytes:
    """A random accepted text: up to `max_free` free steps, then the nearest way to acceptance."""
    far = steps_to_accept(dfa)
    byte_of = [
        np.flatnonzero(dfa.byte_class == c).tolist() for c in range(dfa.transitions.shape[1])
    ]
    state, text, free = 0, bytearray(), rng.randrange(max_free + 1)
    while free > 0 or not dfa.accepting[state]:
        targets = dfa.transitions[state]
        symbols = np.flatnonzero(targets != DEAD)
        if len(symbols) == 0:
            break
        if free <= 0:
            symbols = symbols[far[targets[symbols]] < far[state]]
        symbol = rng.choice(symbols.tolist())
        text.append(rng.choice(byte_of[symbol]))
        state = int(targets[symbol])
        free -= 1
    return bytes(text)


def steps_to_accept(dfa: ByteDFA) -> np.ndarray:
    """The fewest bytes from each state to acceptance, by relaxation; inf if there is no way."""
    far = np.where(dfa.accepting, 0.0, np.inf)
    while True:
        reached = np.append(far, np.inf)[dfa.transitions]  # index -1: dead
        better: np.ndarray = np.minimum(far, 1 + reached.min(axis=1, initial=np.inf))
        if np.array_equal(better, far):
            return better
        far = better


def equivalence_classes(dfa: ByteDFA) -> int:
    """How many states the minimal automaton has, with the dead one: Moore's algorithm, naively."""
    num_states = dfa.num_states
    block = [int(accepting) for accepting in dfa.accepting] + [2]
    while True:
        keys = [
            (block[state], *(block[target] for target in dfa.transitions[state]))
            for state in range(num_states)
        ]
        numbers = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        refined = [numbers[key] for key in keys] + [len(numbers)]
        if len(numbers) == len(set(block[:num_states])):
            return len(numbers)
        block = refined


def reachable(dfa: ByteDFA) -> set[int]:
    """The states that the start leads to."""
    seen, todo = {0}, [0]
    while todo:
        for target in dfa.transitions[todo.pop()].tolist():
            if target != DEAD and target not in seen:
                seen.add(target)
                todo.append(target)
    return seen
