"""Merging equivalent states by partition refinement, in rounds over arrays.

A round splits every block by the blocks that its states lead to. As in Hopcroft's algorithm, the
largest part keeps the block's number, so that only states that lead to a renumbered state have to
be looked at again: O(n log n) states are, whatever the number of rounds. The first partition is
by the distances to acceptance, which separates nearly all states of an acyclic automaton.

Source: J. Hopcroft, "An n log n algorithm for minimizing states in a finite automaton", 1971.
"""

import numpy as np

from scheduler_proc.grammar.regex.trim import Distances


def merge_equivalent(
    table: np.ndarray, accepting: np.ndarray, far: Distances
) -> tuple[np.ndarray, np.ndarray]:
    """The table int32 [states, classes] and `accepting` with one state per equivalence class.

    -1 in the table is the dead state; all others must be live. State 0 stays state 0.
    """
    facts = np.stack([accepting.astype(np.float64), far.shortest, far.longest], axis=1)
    block = _numbers_of_rows(facts)
    if block.max() + 1 < len(block):
        block = _refine(table, block)
    _, firsts, block = np.unique(block, return_index=True, return_inverse=True)
    order = np.argsort(firsts)  # so that the block of state 0 is block 0
    number = np.empty(len(order) + 1, np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    block = number[block]
    number = np.append(block, np.int32(-1))  # index -1 gives -1
    representatives = firsts[order]
    return number[table[representatives]], accepting[representatives]


def _refine(table: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The coarsest stable refinement of `block`, int64 [states]."""
    sources, bounds = _predecessors(table)
    extended = np.append(block, -1)  # index -1, the dead state, gives -1
    num_blocks = int(block.max()) + 1
    active = np.arange(len(block))
    sizes = np.bincount(block)
    while len(active):
        active = active[sizes[extended[active]] > 1]
        moved, num_blocks = _split(table, extended, active, sizes, num_blocks)
        sizes = np.bincount(extended[:-1], minlength=num_blocks)
        active = _gather(sources, bounds, moved)
    return extended[:-1]


def _split(
    table: np.ndarray, block: np.ndarray, active: np.ndarray, sizes: np.ndarray, num_blocks: int
) -> tuple[np.ndarray, int]:
    """Split the blocks of the `active` states; returns which states changed their block.

    The states of a block that are not active still lead to the same blocks as each other, and to
    others than every active one.
    """
    if len(active) == 0:
        return active, num_blocks
    keys = np.column_stack([block[active], block[table[active]]]).astype(np.int32)
    part = _numbers_of_rows(keys)
    num_parts = int(part.max()) + 1
    old = np.empty(num_parts, np.int64)
    old[part] = block[active]
    counts = np.bincount(part)
    rest = sizes[old] - np.bincount(block[active], minlength=num_blocks)[old]
    by_size = np.lexsort((counts, old))
    largest = np.zeros(num_parts, bool)
    largest[by_size[np.append(old[by_size][1:] != old[by_size][:-1], True)]] = True
    keeps = largest & (counts >= rest)
    number = old.copy()
    number[~keeps] = num_blocks + np.arange(np.count_nonzero(~keeps))
    num_blocks += int(np.count_nonzero(~keeps))
    block[active] = -2  # so that only the others are left in their blocks
    outvoted = old[keeps & (rest > 0)]
    others = np.flatnonzero(np.isin(block[:-1], outvoted)) if len(outvoted) else outvoted
    block[active] = number[part]
    fresh = np.zeros(num_blocks + len(outvoted), np.int64)
    fresh[outvoted] = num_blocks + np.arange(len(outvoted))
    block[others] = fresh[block[others]]
    return np.concatenate([active[~keeps[part]], others]), num_blocks + len(outvoted)


def _predecessors(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """States by target: those that lead to state t are sources[bounds[t] : bounds[t + 1]]."""
    num_states, num_classes = table.shape
    targets = table.ravel()
    sources = np.repeat(np.arange(num_states), num_classes)
    alive = targets >= 0
    pairs = np.unique(targets[alive].astype(np.int64) * num_states + sources[alive])
    bounds = np.searchsorted(pairs, np.arange(num_states + 1) * num_states)
    return pairs % num_states, bounds


def _gather(sources: np.ndarray, bounds: np.ndarray, states: np.ndarray) -> np.ndarray:
    """All predecessors of `states`, each once."""
    starts = bounds[states]
    lengths = bounds[states + 1] - starts
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.unique(sources[np.repeat(starts, lengths) + offsets])


def _numbers_of_rows(rows: np.ndarray) -> np.ndarray:
    """For each row of a matrix the number of its content, by first occurrence: int64 [rows]."""
    width = rows.shape[1] * rows.itemsize
    data = np.ascontiguousarray(rows).tobytes()
    known: dict[bytes, int] = {}
    numbers = [
        known.setdefault(data[at : at + width], len(known)) for at in range(0, len(data), width)
    ]
    return np.array(numbers, np.int64)
