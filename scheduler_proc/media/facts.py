"""What planning must know of a model that sees media."""

from typing import NamedTuple


class MediaFacts(NamedTuple):
    """Of one model, as its executor tells them."""

    embedding_bytes: int  # that one token's embedding takes in the executor
    sees_both_ways: bool  # the tokens of an item see each other: they are planned in one step
    has_grid_positions: bool  # rotary positions have three parts
    in_slices: bool = False  # a part may be encoded a slice at a time
