"""Lists of different lengths, one after the other in one array: list i is values[indptr[i] :
indptr[i+1]]. Batches, their parts and their joins are indexed by these.
"""

from collections.abc import Sequence

import numpy as np


def indptr_of(lens: np.ndarray | Sequence[int]) -> np.ndarray:
    """Where each list of these lengths begins, and where the last one ends: int32 [n+1]."""
    indptr = np.zeros(len(lens) + 1, np.int32)
    np.add.accumulate(lens, out=indptr[1:])
    return indptr


def both_indptr(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The indptr of the first's lists, followed by the second's."""
    return np.concatenate((first, second[1:] + first[-1]))


def taken_indptr(indptr: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The indptr of the lists with these numbers, once `entries_of` has picked their values."""
    return indptr_of(np.diff(indptr)[numbers])


def entries_of(indptr: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The indices of the values in the lists with these numbers, one list after the other."""
    ranges = [np.arange(indptr[i], indptr[i + 1]) for i in numbers.tolist()]
    return np.concatenate([np.empty(0, np.int64), *ranges]).astype(np.int64)


def slices_of(
    values: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The slices values[begins[i] : ends[i]], one list after the other: their indptr and values."""
    slices = [values[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    return indptr_of(ends - begins), np.concatenate([values[:0], *slices])
