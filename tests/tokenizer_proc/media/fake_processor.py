"""A model that sees, for tests: its pictures are words, its tokens bytes.

A file is "WIDTH HEIGHT COLOUR": one item of WIDTH * HEIGHT / 64 tokens, or for a video one for each
of its frames. Other files do what their name says.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from srt.files.gguf_tokens import byte_level_alphabet
from srt.files.tokenizer import Tokenizer
from srt.wire.media import MediaItem, MediaRef
from srt.wire.messages import Refused
from tests.tokenizer_proc.admission.test_front import EPOCH, VOCAB
from tests.tokenizer_proc.direct_front import DirectFront
from tokenizer_proc.admission.front import Word
from tokenizer_proc.media.base import MediaError, Processed
from tokenizer_proc.media.showing import controls_of
from tokenizer_proc.media.store import key_of
from tokenizer_proc.media.worker import made_of
from tokenizer_proc.prompt.chat_template import ChatTemplate

IMAGE, VIDEO = 258, 259
SEEING = dataclasses.replace(
    VOCAB,
    token_bytes=[*VOCAB.token_bytes, b"<image>", b"<video>"],
    special_ids=VOCAB.special_ids | {IMAGE, VIDEO},
    context_len=400,
)


def _loop() -> None:
    while True:
        pass


def _eat() -> None:
    np.ones(2**33, np.uint8)


DEEDS: dict[bytes, Callable[[], None]] = {b"crash": os.abort, b"loop": _loop, b"eat": _eat}


class FakeProcessor:
    """See above. `decoded` has the files that were processed in this process."""

    kinds = frozenset({"image", "video"})
    placeholder_id, video_placeholder_id = IMAGE, VIDEO

    def __init__(self) -> None:
        self.decoded: list[bytes] = []

    def placeholder(self, kind: str) -> str:
        return f"<{kind}>"

    def process(self, ref: MediaRef, frames: Sequence[bytes]) -> list[Processed]:
        self.decoded.append(b"".join(frames))
        return [self._processed(ref, frame) for frame in frames]

    def _processed(self, ref: MediaRef, frame: bytes) -> Processed:
        if frame in DEEDS:
            DEEDS[frame]()
        if frame == b"bug":
            raise KeyError("bug")
        if not frame[:1].isdigit():
            raise MediaError("the file is not an image")
        width, height, colour = map(int, frame.split())
        pixels = np.full((1, height, width, 3), colour, np.uint8)
        digest = sha256(f"{ref.kind} {ref.detail} {pixels.shape}".encode() + pixels.tobytes())
        length = width * height // 64
        item = MediaItem(digest.digest(), ref.kind, length, (1, height, width, 3), (height, width))
        return Processed(item, pixels)

    def expansion(self, kind: str, items: Sequence[MediaItem]) -> str:
        return "".join(f"[{self.placeholder(kind) * item.length}]" for item in items)


def picture(width: int = 16, height: int = 8, colour: int = 7) -> bytes:
    return f"{width} {height} {colour}".encode()


def image(claimed: bytes = b"", frames: int = 1, **options: Any) -> MediaRef:
    return MediaRef("image", claimed, frames, **options)


def video(frames: int) -> MediaRef:
    return MediaRef("video", b"", frames)


def seeing_tokenizer(processor: FakeProcessor, bos_id: int | None = None) -> Tokenizer:
    """One token per byte, <bos>, <eos>, <image> and <video>, of which the last is not special."""
    encoder = tokenizers.Tokenizer(models.BPE(byte_level_alphabet(), []))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.add_special_tokens([AddedToken(t) for t in ("<bos>", "<eos>", "<image>")])
    encoder.add_tokens([AddedToken("<video>")])
    before = () if bos_id is None else (bos_id,)
    return Tokenizer(encoder, before, controls=controls_of(processor))


class SeeingFront(DirectFront):
    """A front whose media are hashed and decoded in this process."""

    def __init__(self, template: str | None = None, **limits: Any) -> None:
        self.processor = FakeProcessor()
        self.now = 0.0
        bounds: dict[str, Any] = {"max_requests": 8, "max_tokens": 4000}
        bounds |= {"max_total_tokens": 10_000, "max_compile_wait_s": 60.0, "max_silence_s": 25.0}
        bounds |= {"find": lambda constraint: "", "limit_media": 4, "media_bytes": 2**20}
        vocab = SEEING if template is None else dataclasses.replace(SEEING, chat_template=template)
        super().__init__(
            seeing_tokenizer(self.processor, limits.pop("bos_id", None)),
            ChatTemplate.from_vocab(vocab),
            vocab,
            epoch=EPOCH,
            processor=self.processor,
            **bounds | limits,
        )

    def hash_one(self) -> bool:
        taken = self.media.take_file()
        if taken is None:
            return False
        self.media.hashed(*taken, key_of(taken[1].ref, taken[1].frames))
        return True

    def decode_one(self) -> bool:
        taken = self.media.take_decode()
        if taken is None:
            return False
        self.media.decoded(*taken, made_of(self.processor, taken[1].ref, taken[1].frames))
        return True

    def go_on(self) -> dict[str, Word | None]:
        """Hash, decode and read all that waits; what becomes of it, by rid."""
        words: dict[str, Word | None] = {}
        while self.hash_one() or self.decode_one():
            for _, word in self.take_known():
                assert isinstance(word, Refused)
                words[word.rid] = word
        while piece := self.turns.take():
            reading = self.text.read(piece.req, piece.items)
            words[piece.req.rid] = self.has_read(piece, reading, self.now)
        return words
