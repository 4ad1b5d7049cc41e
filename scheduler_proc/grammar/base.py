"""The interfaces that every grammar back end implements, and their error.

A `CompiledGrammar` is shared by requests and immutable but for its caches; a `Grammar` is one
request's place in it. A grammar lives on the *bytes* of the output: which tokens they came in
makes no difference to what may follow.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from srt.wire.constraint import GrammarError as GrammarError  # patterns raise it too


class BackEndError(GrammarError):
    """A constraint that is right in itself, but too much for the back end, or too slow there."""


SeenMasks = Mapping[int, Callable[[], np.ndarray | None]]
NONE_SEEN: SeenMasks = {}


class Grammar(Protocol):
    """Where one request's output stands. Not to be used by two threads at once."""

    def fill(self, row: np.ndarray) -> None:
        """Write the tokens that may follow into `row`: uint32 [ceil(vocab/32)], bit i%32 of word
        i//32 for token i. EOS ids are set exactly where the output may end; special tokens never.
        Raises GrammarError if nothing may follow."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by `tokens`. Raises GrammarError, and stays where it was, if they do not fit."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted tokens."""

    def forced_bytes(self) -> bytes:
        """All bytes that every continuation begins with; empty where there is a choice, as between
        going on and ending."""

    def is_accepting(self) -> bool:
        """Whether the output may end here; not once EOS has ended it."""

    def is_terminated(self) -> bool:
        """Whether the output has ended: by EOS, or, in a vocabulary without one, because nothing
        can follow."""

    def is_free(self) -> bool:
        """Whether any text at all may follow from here on, so that the grammar is no longer
        needed. False if that is not known."""

    def mask_after(self, token: int) -> np.ndarray | None:
        """What `fill` would write after `token`, read-only, if it is at hand and a token has to be
        sampled there: the output is not over, neither its next bytes nor its end are forced, and
        the grammar is still needed. Else None. The grammar stays where it is."""

    def seen_after(self) -> "SeenMasks":
        """Some tokens that may follow here, and what gives `mask_after` for each: None if the mask
        is not at hand any more. Holds until the grammar goes on."""

    def narrow(self, row: np.ndarray, left: int) -> bool:
        """Take out of `row`, which `fill` has written, all tokens but EOS after which the output
        could not end any more, the output having `left` more tokens at most; returns whether there
        were any. Nothing changes where no token would be left, or in a grammar that cannot tell."""

    def near(self, left: int) -> bool:
        """Whether `narrow` could change anything with `left` more tokens, or one fewer."""

    def ends_within(self, left: int) -> bool:
        """Whether the output is known to be able to end after at most `left` more tokens, EOS
        apart, or nothing is known of that."""

    def instead_of(self, token: int) -> list[int] | None:
        """The tokens, perhaps none, that are to follow in the place of `token`, which was sampled,
        and with which the output is complete. None: `token` is to be accepted."""

    def fork(self) -> "Grammar":
        """An independent copy."""

    def for_drafts(self) -> "Grammar":
        """A copy to try drafted tokens on, whatever becomes of it. Holds until the grammar goes on
        or this is called again. Raises GrammarError if its drafts have cost too much."""


class WithoutStates:
    """The part of a `Grammar` that shows no states: it cannot tell how far an end is, nor whether
    any text may follow, and it keeps no masks."""

    __slots__ = ()

    def is_free(self) -> bool:
        return False

    def mask_after(self, token: int) -> np.ndarray | None:
        return None

    def seen_after(self) -> SeenMasks:
        return NONE_SEEN

    def narrow(self, row: np.ndarray, left: int) -> bool:
        return False

    def near(self, left: int) -> bool:
        return False

    def ends_within(self, left: int) -> bool:
        return True

    def instead_of(self, token: int) -> list[int] | None:
        return None


def fewest_forced(grammar: Grammar, longest_token: int) -> int:
    """A bound from below on the tokens of any output from here on: what is forced must come."""
    if grammar.is_accepting():
        return 0
    return max(1, -(-len(grammar.forced_bytes()) // longest_token))


class CompiledGrammar(Protocol):
    """A constraint ready for use with one vocabulary."""

    @property
    def backend(self) -> str:
        """The name of the back end: fsm, llguidance or xgrammar."""

    @property
    def num_bytes(self) -> int:
        """Memory that it holds now, caches included, about."""

    @property
    def narrows(self) -> bool:
        """Whether its grammars can tell how far an end is (`narrow`)."""

    @property
    def fewest_tokens(self) -> int:
        """A bound from below on the tokens of an output, EOS apart."""

    def start(self) -> Grammar:
        """A grammar at the beginning of an output."""

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What its artefact holds: facts that msgpack can carry, and arrays by name."""
