"""What turns a picture's or a video's file into what a model's vision tower takes: one processor
per family of models, made from the files of the checkpoint. Nothing here needs torch or
transformers.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from srt.wire.media import MediaItem, MediaRef


class MediaError(ValueError):
    """A file that cannot be shown to the model: the text says why, to the client (a 400)."""


class Processed(NamedTuple):
    """An item and its pixels: uint8 [tiles, height, width, 3], contiguous, before rescaling and
    normalising."""

    item: MediaItem
    pixels: np.ndarray


class MediaProcessor(Protocol):
    """A family's way from files to items, and from items to text.

    It is deterministic and has no state besides its configuration: equal files and options make
    equal items, in any process.
    """

    @property
    def kinds(self) -> frozenset[str]:
        """What it takes, of "image" and "video"."""

    @property
    def placeholder_id(self) -> int:
        """The token id whose embeddings are replaced, at items of kind "image"."""

    @property
    def video_placeholder_id(self) -> int:
        """The same at items of kind "video": some families have another id for them."""

    def placeholder(self, kind: str) -> str:
        """What a rendered chat, or a user's own text, has for one medium of this kind."""

    def process(self, ref: MediaRef, frames: Sequence[bytes]) -> list[Processed]:
        """The items of a file, in the order of their spans; `frames` are as `ref` says.

        Raises MediaError, and MemoryError where memory is limited.
        """

    def expansion(self, kind: str, items: Sequence[MediaItem]) -> str:
        """The text that takes the place of a placeholder whose medium has these items: each
        item's `length` placeholder tokens, one after the other, and what stands around them."""
