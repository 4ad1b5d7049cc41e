"""The compressed automaton: runs of bytes without a choice, each one edge with a string.

A state is *singular* if it is not accepting and one byte only can follow (a class of several bytes
is a choice, and so is ending). What the output must be from there on is known without the model,
which is what jump-forward decoding appends at once.

Source: the compressed finite state machine of "Fast JSON Decoding for Local LLMs with Compressed
Finite State Machine", LMSYS blog, February 2024; here on bytes and not on characters.
"""

from typing import NamedTuple

import numpy as np

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex.dfa import ByteDFA


class Chain(NamedTuple):
    """One compressed edge: byte i of `text` leads away from `states[i]`, the last to `tail`."""

    text: bytes
    states: list[int]
    tail: int


class Chains:
    """The chains of an automaton; every singular state is in exactly one.

    A chain begins at a *head*: a singular state that is the start, or that several transitions
    lead to, or one from a state with a choice. It ends before the next head or state with a
    choice, so only its head can be entered from outside.
    """

    def __init__(self, dfa: ByteDFA) -> None:
        """Raises GrammarError if singular states lead in a circle. If every state can reach
        acceptance, none do: such a circle has no way out, and no accepting state."""
        self.forced_byte = forced_byte(dfa)
        self.singular = np.flatnonzero(self.forced_byte >= 0)
        classes = dfa.byte_class[self.forced_byte[self.singular]]
        targets = dfa.transitions[self.singular, classes]
        self._next = dict(zip(self.singular.tolist(), targets.tolist(), strict=True))
        entries = np.bincount(dfa.transitions[dfa.transitions >= 0], minlength=dfa.num_states)
        entries[0] += 1  # outputs begin there
        self._inner = self._next.keys() & set(targets[entries[targets] == 1].tolist())
        self.chains = [self._from(head) for head in self._next if head not in self._inner]
        # state -> its chain and its place there
        self._places = {
            state: (chain, place)
            for chain in self.chains
            for place, state in enumerate(chain.states)
        }
        self._check_ends()

    def _from(self, head: int) -> Chain:
        states = [head]
        while (state := self._next[states[-1]]) in self._inner:
            states.append(state)
        return Chain(self.forced_byte[states].astype(np.uint8).tobytes(), states, state)

    def _check_ends(self) -> None:
        ends: set[int] = set()  # singular states whose chains are known to end
        for head in self._next:
            path: dict[int, None] = {}
            state = head
            while state in self._next and state not in ends and state not in path:
                path[state] = None
                state = self._next[state]
            if state in path:
                raise GrammarError("an automaton with states that go round without a choice")
            ends.update(path)

    def forced(self, state: int) -> bytes:
        """The bytes that every output goes on with from `state`, up to the next choice."""
        parts = []
        while (found := self._places.get(state)) is not None:
            chain, place = found
            parts.append(chain.text[place:] if place else chain.text)
            state = chain.tail
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, state: int) -> int:
        """The state after `forced(state)`."""
        while (found := self._places.get(state)) is not None:
            state = found[0].tail
        return state


def forced_byte(dfa: ByteDFA) -> np.ndarray:
    """The one byte that can follow each state, -1 where there is a choice: int16 [S]."""
    live = dfa.transitions >= 0
    sizes = np.bincount(dfa.byte_class, minlength=live.shape[1])
    example = np.full(live.shape[1], -1, np.int16)  # the byte of a class of one
    example[dfa.byte_class] = np.arange(256)
    only = (live.sum(axis=1) == 1) & ~dfa.accepting
    follows = live.argmax(axis=1)
    return np.where(only & (sizes[follows] == 1), example[follows], np.int16(-1))
