"""How the JSON of several routes names pictures and videos."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from srt.wire.media import MAX_FRAMES

Detail = Literal["auto", "low", "high"]
FrameCount = Annotated[int, Meta(ge=0, le=MAX_FRAMES)]
Modality = Literal["text", "image", "multi-images", "video"]


class ShownFile(Struct, forbid_unknown_fields=True, frozen=True):
    """A picture or video of /generate, with options: base64, a `data:` URL, or an http(s) URL of a
    host that the server fetches from. Of a video `num_frames` are shown, 0 is the model's
    default."""

    url: str
    detail: Detail = "auto"
    num_frames: FrameCount = 0


Shown = str | ShownFile
