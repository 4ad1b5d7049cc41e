"""When Python's garbage collector runs in the scheduler process. It holds the loop meanwhile.

What lives as long as the process is frozen, nodes of the radix tree are not tracked (`TreeNode`),
and almost all else is freed by its reference count. Young objects are collected as ever. All
objects are looked at when there is nothing to do, or after many collections of young ones.
"""

import gc

YOUNG, MIDDLE = 5000, 5  # objects, and collections of them: a millisecond or less
MOST_COLLECTIONS = 40  # of the middle generation until all objects are looked at: a million remain
_NEVER = 2**30


def begin() -> None:
    """The process has started."""
    gc.collect()  # what is garbage already would be frozen, too
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, _NEVER)


def rest() -> None:
    """There is nothing to do now."""
    if gc.get_count()[2] > 0:
        gc.collect()


def stepped() -> None:
    """A step has been run."""
    if gc.get_count()[2] > MOST_COLLECTIONS:
        gc.collect()
