"""The back end `fsm`: a pattern's automaton over the vocabulary, with masks by state and chains.

The compile worker builds an `FsmGrammar` and stores its arrays; the scheduler builds it from them
again and gives each req an `FsmPosition`. A position is the automaton's state after each accepted
token, so taking tokens back is cheap. Masks come from the artefact, else from the vocabulary's
`MaskCache`, else they are computed.
"""

import weakref
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from scheduler_proc.grammar.base import NONE_SEEN, GrammarError, SeenMasks
from scheduler_proc.grammar.fsm.arrays import MaskRows, checked_masks, checked_tables
from scheduler_proc.grammar.fsm.chains import Chains
from scheduler_proc.grammar.fsm.closing import Closing
from scheduler_proc.grammar.fsm.mask_order import mask_order
from scheduler_proc.grammar.fsm.token_masks import TokenMasks
from scheduler_proc.grammar.fsm.trim import TrimmedDFA, trim
from scheduler_proc.grammar.regex.dfa import ByteDFA
from scheduler_proc.grammar.vocabulary import TokenVocabulary

_MAX_PRECOMPUTED_BYTES = 4 << 20
_BYTES_PER_CHAIN_STATE = 200  # its entries in the tables of `Chains`, about
_ENDED = -1  # the state after EOS
_MOST_SEEN = 4096  # entries of a grammar for tokens that have been seen after a state
_BYTES_PER_SEEN = 200  # about
_UNKNOWN, _PLAIN, _OTHER = range(3)  # kinds of states, see `plain_mask`


class FsmGrammar:
    """A trimmed automaton over one vocabulary: a `CompiledGrammar`."""

    backend = "fsm"

    narrows = True

    def __init__(
        self,
        trimmed: TrimmedDFA,
        chains: Chains,
        masks: MaskRows,
        vocabulary: TokenVocabulary,
        fewest_tokens: int | None = None,
    ) -> None:
        """Takes tables that are known to be sound; see `build` and `from_arrays`. `fewest_tokens`
        is found when it is needed if it is not given."""
        dfa = trimmed.dfa
        self.trimmed = trimmed
        self.chains = chains
        self.vocabulary = vocabulary
        self._stored = masks
        self._stored_masks = masks.by_state()
        self._compute = TokenMasks(trimmed, vocabulary).compute
        self._cache = vocabulary.mask_cache
        self._owner = self._cache.new_owner()
        weakref.finalize(self, self._cache.drop, self._owner)
        # The tables again as what Python indexes fastest.
        self._table: memoryview[int] = np.ascontiguousarray(dfa.transitions).reshape(-1).data
        self._num_classes = dfa.transitions.shape[1]
        self._classes = dfa.byte_class.tobytes()
        self._accepting = dfa.accepting.tobytes()
        ends = trimmed.token_ends
        self._token_ends = None if ends is None else ends.tobytes()
        self._pieces = vocabulary.token_bytes
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._free = _free_states(trimmed, vocabulary)
        self._not_eos = ~vocabulary.pack(vocabulary.eos_ids)
        self._fewest_tokens = fewest_tokens
        self._closing_owner = self._cache.new_owner()
        weakref.finalize(self, self._cache.drop, self._closing_owner)
        self._kinds = bytearray(dfa.num_states)
        self._seen: defaultdict[int, dict[int, weakref.ref[np.ndarray]]] = defaultdict(dict)
        self._num_seen = 0

    @classmethod
    def build(
        cls, dfa: ByteDFA, vocabulary: TokenVocabulary, *, precompute_s: float = 0.02
    ) -> "FsmGrammar":
        """Trims `dfa` and computes masks for as long as `precompute_s`.

        Raises GrammarError if the vocabulary cannot write anything that matches.
        """
        trimmed = trim(dfa, vocabulary)
        chains = Chains(trimmed.dfa)
        masks = MaskRows.of(_first_masks(trimmed, chains, vocabulary, precompute_s), vocabulary)
        return cls(trimmed, chains, masks, vocabulary)

    @property
    def num_bytes(self) -> int:
        """Memory that it holds now, its masks in the cache included."""
        trimmed, stored = self.trimmed, self._stored
        dfa = trimmed.dfa
        arrays = (dfa.transitions, dfa.byte_class, dfa.accepting, *stored)
        return (
            sum(array.nbytes for array in arrays)
            + (0 if trimmed.token_ends is None else trimmed.token_ends.nbytes)
            + len(self.chains.singular) * _BYTES_PER_CHAIN_STATE
            + len(self._kinds)
            + self._num_seen * _BYTES_PER_SEEN
            + self._cache.owned_bytes(self._owner)
            + self._cache.owned_bytes(self._closing_owner)
            + (self.closing.num_bytes if "closing" in self.__dict__ else 0)
        )

    @cached_property
    def closing(self) -> Closing:
        """What knows how far the ends are: made for outputs that must end within a limit."""
        return Closing(self.trimmed, self.vocabulary)

    @property
    def fewest_tokens(self) -> int:
        if self._fewest_tokens is None:
            self._fewest_tokens = self.closing.fewest_tokens(0)
        return self._fewest_tokens

    def start(self) -> "FsmPosition":
        return FsmPosition(self, [0])

    # ---- storage -------------------------------------------------------------------------------

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Facts and arrays from which `from_arrays` makes an equal grammar."""
        dfa, ends = self.trimmed
        arrays = {
            "transitions": dfa.transitions,
            "byte_class": dfa.byte_class,
            "accepting": dfa.accepting,
            **self._stored._asdict(),
        }
        if ends is not None:
            arrays["token_ends"] = ends
        facts = {"vocabulary": self.vocabulary.fingerprint, "fewest_tokens": self.fewest_tokens}
        return facts, arrays

    @classmethod
    def from_arrays(
        cls, facts: dict[str, Any], arrays: dict[str, np.ndarray], vocabulary: TokenVocabulary
    ) -> "FsmGrammar":
        """The grammar that `to_arrays` stored; the arrays may be read-only and stay in use.

        Raises GrammarError if they are of another vocabulary or cannot be right: no index in them
        may lead outside a table.
        """
        if facts.get("vocabulary") != vocabulary.fingerprint:
            raise GrammarError("the compiled grammar is of another vocabulary")
        fewest_tokens = facts.get("fewest_tokens")
        if type(fewest_tokens) is not int or fewest_tokens < 0:
            raise GrammarError("the compiled grammar is damaged: it has no fewest tokens")
        trimmed = checked_tables(arrays)
        masks = checked_masks(arrays, trimmed.dfa.num_states, vocabulary)
        return cls(trimmed, Chains(trimmed.dfa), masks, vocabulary, fewest_tokens)

    # ---- for positions -------------------------------------------------------------------------

    def mask(self, state: int) -> np.ndarray:
        """The tokens that may follow `state`, read-only. Raises GrammarError if none may."""
        mask = self._stored_masks.get(state)
        if mask is None:
            mask = self._cache.get(self._owner, state)
        return self._computed(state) if mask is None else mask

    def _computed(self, state: int) -> np.ndarray:
        mask = self._compute(state)
        if not mask.any():
            raise GrammarError("the output is complete: no token can follow")
        self._cache.put(self._owner, state, mask)
        return mask

    def narrow(self, state: int, row: np.ndarray, left: int) -> bool:
        """See `Grammar.narrow`."""
        if state == _ENDED or not 0 < left <= self.closing.reach:
            return False
        mask = self._closing_mask(state, left)
        if mask is None:
            return False
        narrowed = row & mask
        if not narrowed.any() or np.array_equal(narrowed, row):
            return False
        row[:] = narrowed
        return True

    def _closing_mask(self, state: int, left: int) -> np.ndarray | None:
        """What may follow with `left` more tokens, EOS included; None if it is not limited."""
        key = state * (self.closing.reach + 1) + left
        mask = self._cache.get(self._closing_owner, key)
        if mask is None:
            mask = self.closing.mask(state, left, self.mask(state))
            if mask is not None:
                mask |= self.vocabulary.eos_mask
                self._cache.put(self._closing_owner, key, mask)
        return mask

    def plain_mask(self, state: int) -> np.ndarray | None:
        """The mask of a state, if it is at hand and the state is plain: the output is not over, no
        bytes are forced, more than EOS may follow, but not everything. Else None."""
        kind = self._kinds[state] if state != _ENDED else _OTHER
        if kind == _OTHER:
            return None
        mask = self._stored_masks.get(state)
        if mask is None:
            mask = self._cache.get(self._owner, state)
        if kind == _UNKNOWN and mask is not None:
            is_forced = state in self._free or self.chains.forced(state) != b""
            is_plain = not is_forced and (mask & self._not_eos).any()
            self._kinds[state] = _PLAIN if is_plain else _OTHER
            return mask if is_plain else None
        return mask

    def mask_after(self, state: int, token: int) -> np.ndarray | None:
        """`plain_mask` of the state after `token`; None if that cannot follow `state`."""
        try:
            mask = self.plain_mask(self.next_state(state, token))
        except GrammarError:
            return None
        if mask is not None and self._num_seen < _MOST_SEEN:
            seen = self._seen[state]
            self._num_seen += token not in seen
            seen[token] = weakref.ref(mask)
        return mask

    def seen_after(self, state: int) -> SeenMasks:
        """What `mask_after` has given for tokens after `state`, as long as the masks are kept."""
        return self._seen.get(state, NONE_SEEN)

    def next_state(self, state: int, token: int) -> int:
        """The state after `token`. Raises GrammarError if it cannot follow `state`."""
        data = self._pieces[token] if 0 <= token < len(self._pieces) else b""
        if not data or state == _ENDED:
            return self._end(state, token)
        table, width, here = self._table, self._num_classes, state
        for byte_class in data.translate(self._classes):
            here = table[here * width + byte_class]
            if here < 0:
                raise self._refusal(token)
        if self._token_ends is not None and not self._token_ends[here]:
            raise self._refusal(token)
        return here

    def _end(self, state: int, token: int) -> int:
        if token in self._eos_ids and state != _ENDED and self._accepting[state]:
            return _ENDED
        raise self._refusal(token)

    def _refusal(self, token: int) -> GrammarError:
        known = 0 <= token < len(self._pieces) and self._pieces[token]
        text = f" ({known!r})" if known else ""
        return GrammarError(f"token {token}{text} cannot follow here")

    def is_accepting(self, state: int) -> bool:
        """Whether an output may end in `state`."""
        return state != _ENDED and bool(self._accepting[state])

    def is_free(self, state: int) -> bool:
        """Whether every token may follow `state`, and every other one after that."""
        return state in self._free

    def has_ended(self, state: int) -> bool:
        """Whether an output in `state` is over; without EOS ids, because nothing can follow."""
        if state == _ENDED or self._eos_ids or not self._accepting[state]:
            return state == _ENDED
        return not self._compute(state).any()


def _free_states(trimmed: TrimmedDFA, vocabulary: TokenVocabulary) -> frozenset[int]:
    """The states that every token leads back to, and where an output may end. In a minimal
    automaton there is one at most."""
    dfa = trimmed.dfa
    ends = dfa.accepting if trimmed.token_ends is None else dfa.accepting & trimmed.token_ends
    present = np.delete(dfa.byte_class, list(vocabulary.absent_bytes))
    possible = np.flatnonzero(ends)
    for byte_class in np.unique(present):
        possible = possible[dfa.transitions[possible, byte_class] == possible]
    return frozenset(possible.tolist())


def _first_masks(
    trimmed: TrimmedDFA, chains: Chains, vocabulary: TokenVocabulary, seconds: float
) -> dict[int, np.ndarray]:
    """As many masks as there is time for, the likeliest to be needed first."""
    if seconds <= 0:
        return {}
    until = perf_counter() + seconds
    compute = TokenMasks(trimmed, vocabulary).compute
    most = _MAX_PRECOMPUTED_BYTES // (4 * vocabulary.mask_width)
    masks: dict[int, np.ndarray] = {}
    for state in mask_order(trimmed.dfa, chains):
        if perf_counter() >= until or len(masks) >= most:
            break
        mask = compute(state)
        if mask.any():  # a complete output has no mask if there is no EOS
            masks[state] = mask
    return masks


class FsmPosition:
    """One request's place in an `FsmGrammar`: a `Grammar`."""

    __slots__ = ("_grammar", "_states")

    def __init__(self, grammar: FsmGrammar, states: list[int]) -> None:
        self._grammar = grammar
        self._states = states  # after each accepted token, the start first

    def fill(self, row: np.ndarray) -> None:
        state = self._states[-1]
        if state == _ENDED:
            raise GrammarError("the output has ended: no token can follow")
        row[:] = self._grammar.mask(state)

    def accept(self, tokens: Sequence[int]) -> None:
        state = self._states[-1]
        states = []
        for token in tokens:
            state = self._grammar.next_state(state, token)
            states.append(state)
        self._states += states

    def rollback(self, num_tokens: int) -> None:
        """Raises ValueError if fewer were accepted."""
        if not 0 <= num_tokens < len(self._states):
            raise ValueError(f"cannot take back {num_tokens} of {len(self._states) - 1} tokens")
        del self._states[len(self._states) - num_tokens :]

    def forced_bytes(self) -> bytes:
        return self._grammar.chains.forced(self._states[-1])

    def is_accepting(self) -> bool:
        return self._grammar.is_accepting(self._states[-1])

    def is_terminated(self) -> bool:
        return self._grammar.has_ended(self._states[-1])

    def is_free(self) -> bool:
        return self._grammar.is_free(self._states[-1])

    def mask_after(self, token: int) -> np.ndarray | None:
        return self._grammar.mask_after(self._states[-1], token)

    def seen_after(self) -> SeenMasks:
        return self._grammar.seen_after(self._states[-1])

    def narrow(self, row: np.ndarray, left: int) -> bool:
        return self._grammar.narrow(self._states[-1], row, left)

    def near(self, left: int) -> bool:
        state = self._states[-1]
        is_bound = state != _ENDED and not self._grammar.is_free(state)
        return is_bound and left - 1 <= self._grammar.closing.reach

    def ends_within(self, left: int) -> bool:
        state = self._states[-1]
        return state == _ENDED or self._grammar.closing.ends_within(state, left)

    def instead_of(self, token: int) -> list[int] | None:
        return None

    def fork(self) -> "FsmPosition":
        return FsmPosition(self._grammar, self._states.copy())

    def for_drafts(self) -> "FsmPosition":
        return self.fork()
