"""What executors need of a model's eyes."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from srt.wire.media import MediaItem


class VisionModel(Protocol):
    """A tower and its projector. Parts of an item are computed by themselves, then joined.

    The first numbers of an embedding, as many as a hidden state has, take the place of a token's
    embedding. There may be more: of these the k-th group of as many is added to the token's hidden
    state after the decoder's layer k.
    """

    width: int  # numbers of an embedding, a multiple of the decoder's hidden size

    sees_both_ways: bool  # the tokens of an item attend to each other in the decoder
    has_grid_positions: bool  # rotary positions have three parts

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take."""
        ...

    def num_parts(self, item: MediaItem) -> int:
        """In how many parts the item is encoded."""
        ...

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int) -> torch.Tensor:
        """The features of one part of `pixels`, uint8 [tiles, height, width, 3]."""
        ...

    def join(self, item: MediaItem, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The item's embeddings, [length, width]."""
        ...
