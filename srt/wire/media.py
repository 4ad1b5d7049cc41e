"""Pictures and videos on their way through the ring.

Their bytes are frames of their own, behind the message that names them. What a model sees of one
is a row of items; an item is encoded by itself, and its embeddings stand at one span of a prompt.
"""

from msgspec import Struct

MAX_FILE_BYTES = 20_000_000  # of a picture or video, or all frames of one
MAX_FRAMES = 768  # of a video that are looked at, or that it is given as
BASE64_BLANKS = {ord(blank): None for blank in " \t\n\f\r"}  # for str.translate


class MediaRef(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A file that a request shows the model, an "image" or a "video". It is the next `frames`
    frames behind the message: one; several pictures if these are the frames of a video; none if an
    earlier one of the same message has the same `sha256`, that of its frames one after the other.

    `detail` is OpenAI's; of a video `num_frames` are looked at (0: as many as the model's default).
    """

    kind: str
    sha256: bytes
    frames: int = 1
    detail: str = "auto"
    num_frames: int = 0


class MediaItem(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a vision tower encodes at once, to `length` embeddings. Its pixels are uint8 of this
    `shape`, [tiles, height, width, 3], resized and not normalised.

    `digest` is the sha256 of the pixels and of all that the processor did: items with the same
    digest have the same embeddings. `size` is the height and width of the picture that it was made
    of. `grid` counts its embeddings in time, rows and columns, for models whose positions follow
    them, and two neighbours in time are `time_step` positions apart. `time` is when a video shows
    it, and `duration` the whole video's, in seconds, for models that are told in words.
    """

    digest: bytes
    kind: str
    length: int
    shape: tuple[int, int, int, int]
    size: tuple[int, int] = (0, 0)
    grid: tuple[int, int, int] = (0, 0, 0)
    time_step: float = 0.0
    time: float = 0.0
    duration: float = 0.0


class MediaSpan(Struct, frozen=True, array_like=True, omit_defaults=True):
    """The positions of a prompt, from `start` on, where an item's embeddings stand, in place of
    those of the model's placeholder id."""

    start: int
    item: MediaItem

    @property
    def stop(self) -> int:
        return self.start + self.item.length
