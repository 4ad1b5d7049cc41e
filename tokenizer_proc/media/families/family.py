"""What all families do alike."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from PIL import Image

from srt.wire.errors import ConfigError
from srt.wire.media import MAX_FRAMES, MediaItem, MediaRef
from tokenizer_proc.media.base import MediaError, Processed
from tokenizer_proc.media.pictures import open_picture
from tokenizer_proc.media.settings import Checkpoint
from tokenizer_proc.media.video import Video, open_video


class Family(ABC):
    """A MediaProcessor of pictures, and of videos where `video` is overridden and `kinds` says so.

    `image_token` and `video_token` are what a text has for a medium, and, unless an expansion is
    overridden, what it has for each embedding.
    """

    kinds = frozenset({"image"})

    def __init__(self, tokens: "Tokens", image_id: int, video_id: int | None = None) -> None:
        self.placeholder_id = image_id
        self.video_placeholder_id = image_id if video_id is None else video_id
        self.image_token = tokens[image_id]
        self.video_token = tokens[self.video_placeholder_id]

    def placeholder(self, kind: str) -> str:
        return self.image_token if kind == "image" else self.video_token

    def process(self, ref: MediaRef, frames: Sequence[bytes]) -> list[Processed]:
        if ref.kind not in self.kinds:
            raise MediaError(f"the model takes no {ref.kind}s")
        if ref.kind == "image":
            if len(frames) != 1:
                raise MediaError(f"a picture is one file, not {len(frames)}")
            return self.picture(open_picture(frames[0]), ref.detail)
        if not 0 <= ref.num_frames <= MAX_FRAMES or not 1 <= len(frames) <= MAX_FRAMES:
            raise MediaError(f"of a video 1 to {MAX_FRAMES} frames can be looked at")
        return self.video(open_video(frames), ref.num_frames)

    def expansion(self, kind: str, items: Sequence[MediaItem]) -> str:
        return self.placeholder(kind) * sum(item.length for item in items)

    @abstractmethod
    def picture(self, image: Image.Image, detail: str) -> list[Processed]:
        """The items of a picture; `detail` is OpenAI's."""

    def video(self, video: Video, num_frames: int) -> list[Processed]:
        """The items of a video; `num_frames` is 0 if it was left to us."""
        raise NotImplementedError


class Tokens:
    """The texts of a checkpoint's added tokens."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._texts = checkpoint.token_texts()
        self._path = checkpoint.path

    def __getitem__(self, token_id: int) -> str:
        text = self._texts.get(token_id)
        if not text:
            raise ConfigError(
                f"{self._path}: token {token_id}, of which config.json says that it stands for "
                "media or around them, is not among the tokenizer's added tokens"
            )
        return text
