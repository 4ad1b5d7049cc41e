"""Checks the media of a request before anything is done with them, and takes their files apart."""

from collections.abc import Collection, Sequence

from srt.ring.socket import Blob
from srt.wire.errors import RequestError
from srt.wire.media import MAX_FILE_BYTES, MAX_FRAMES, MediaRef
from tokenizer_proc.media.store import Held

KINDS, DETAILS = ("image", "video"), ("auto", "low", "high")


def check_media(
    refs: Sequence[MediaRef], blobs: Sequence[Blob], kinds: Collection[str], limit: int
) -> None:
    """Raise RequestError naming the medium, for a model that takes these `kinds` and a server that
    takes `limit` media a request. `blobs` are all frames of `refs`."""
    if refs and not kinds:
        raise RequestError("this model takes no pictures or videos", param="media[0]")
    if len(refs) > limit:
        reason = f" must have at most {limit} (the server's --limit-media), not {len(refs)}"
        raise RequestError(reason, at="media")
    known, start = set(), 0
    for i, ref in enumerate(refs):
        where = f"media[{i}]"
        if ref.kind not in KINDS or ref.detail not in DETAILS:
            reason = f": its kind must be one of {KINDS} and its detail one of {DETAILS}"
            raise RequestError(reason, at=where)
        if ref.kind not in kinds:
            raise RequestError(f": this model takes no {ref.kind}s", at=where)
        most = MAX_FRAMES if ref.kind == "video" else 1
        if not (0 <= ref.frames <= most and 0 <= ref.num_frames <= MAX_FRAMES):
            raise RequestError(f" must have at most {most} frames", at=where)
        if ref.frames == 0 and ref.sha256 not in known:
            raise RequestError(" has no frames, nor has an earlier one this sha256", at=where)
        known.add(ref.sha256)
        frames = blobs[start : start + ref.frames]
        start += ref.frames
        size = sum(map(len, frames))
        if ref.frames and not 0 < size <= MAX_FILE_BYTES:
            raise RequestError(f" must have 1 to {MAX_FILE_BYTES} bytes, not {size}", at=where)


def files_of(refs: Sequence[MediaRef], blobs: Sequence[Blob]) -> list[Held]:
    """The file of each medium, of checked `refs`. One that is shown again in the same way is the
    same file: what the request says of sha256 counts within the request only."""
    first: dict[bytes, Sequence[Blob]] = {}
    files: dict[tuple[int, str, str, int], Held] = {}
    shown, start = [], 0
    for ref in refs:
        if ref.frames:
            frames = blobs[start : start + ref.frames]
            start += ref.frames
            first.setdefault(ref.sha256, frames)
        else:
            frames = first[ref.sha256]
        how = (id(frames), ref.kind, ref.detail, ref.num_frames)
        shown.append(files.setdefault(how, Held(ref, frames)))
    return shown
