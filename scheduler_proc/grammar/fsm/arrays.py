"""The arrays of an `FsmGrammar` as they are stored, and the checks before they are used again.

They may come from a file. After the checks no state, class or row in them leads outside a table,
and no mask allows a token that is not text; more than that only the file's checksum can say.
"""

from typing import NamedTuple

import numpy as np

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.fsm.trim import TrimmedDFA
from scheduler_proc.grammar.regex.dfa import ByteDFA
from scheduler_proc.grammar.vocabulary import TokenVocabulary


class MaskRows(NamedTuple):
    """Masks of some states: that of `mask_states[i]` is `masks[mask_rows[i]]`.

    int32 [M], int32 [M] and uint32 [R, mask_width]; states with equal masks share a row.
    """

    mask_states: np.ndarray
    mask_rows: np.ndarray
    masks: np.ndarray

    @classmethod
    def of(cls, masks: dict[int, np.ndarray], vocabulary: TokenVocabulary) -> "MaskRows":
        places: dict[bytes, int] = {}
        rows = [places.setdefault(mask.tobytes(), len(places)) for mask in masks.values()]
        table = np.frombuffer(b"".join(places), np.uint32).reshape(-1, vocabulary.mask_width)
        return cls(np.array(list(masks), np.int32), np.array(rows, np.int32), table)

    def by_state(self) -> dict[int, np.ndarray]:
        rows = (self.masks[row] for row in self.mask_rows.tolist())
        return dict(zip(self.mask_states.tolist(), rows, strict=True))


def checked_tables(arrays: dict[str, np.ndarray]) -> TrimmedDFA:
    """The automaton in `arrays`. Raises GrammarError if it is not one."""
    transitions = _array(arrays, "transitions", np.int32, (None, None))
    num_states, num_classes = transitions.shape
    byte_class = _array(arrays, "byte_class", np.uint8, (256,))
    accepting = _array(arrays, "accepting", np.bool_, (num_states,))
    if not num_states or not num_classes:
        raise _damaged("transitions", "is empty")
    _check_range("transitions", transitions, -1, num_states)
    _check_range("byte_class", byte_class, 0, num_classes)
    _check_range("accepting", accepting.view(np.uint8), 0, 2)
    token_ends = None
    if "token_ends" in arrays:
        token_ends = _array(arrays, "token_ends", np.bool_, (num_states,))
        _check_range("token_ends", token_ends.view(np.uint8), 0, 2)
    return TrimmedDFA(ByteDFA(transitions, byte_class, accepting), token_ends)


def checked_masks(
    arrays: dict[str, np.ndarray], num_states: int, vocabulary: TokenVocabulary
) -> MaskRows:
    """The masks in `arrays`. Raises GrammarError if they cannot be masks of such an automaton."""
    states = _array(arrays, "mask_states", np.int32, (None,))
    rows = _array(arrays, "mask_rows", np.int32, (len(states),))
    masks = _array(arrays, "masks", np.uint32, (None, vocabulary.mask_width))
    _check_range("mask_states", states, 0, num_states)
    _check_range("mask_rows", rows, 0, len(masks))
    if (masks & ~vocabulary.text_mask).any():
        raise _damaged("masks", "allows tokens that are not text")
    if not masks.any(axis=1).all():
        raise _damaged("masks", "has an empty mask")
    return MaskRows(states, rows, masks)


def _array(
    arrays: dict[str, np.ndarray], name: str, dtype: type, shape: tuple[int | None, ...]
) -> np.ndarray:
    """A contiguous array of that dtype and shape (None: any)."""
    array = arrays.get(name)
    if array is None:
        raise _damaged(name, "is missing")
    fits = len(array.shape) == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        raise _damaged(name, f"is {array.dtype} {list(array.shape)}")
    return np.ascontiguousarray(array)


def _check_range(name: str, array: np.ndarray, low: int, high: int) -> None:
    if array.size and (array.min() < low or array.max() >= high):
        raise _damaged(name, f"has entries outside [{low}, {high})")


def _damaged(name: str, why: str) -> GrammarError:
    return GrammarError(f"the compiled grammar is damaged: {name} {why}")
