"""The JSON of the server's own operations and facts."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from srt.gateway.wire.fields import Ignored, Kind, OnlyNeutral
from srt.wire.pause import PauseMode

_MODE = {"mode": OnlyNeutral(("abort",), "to keep requests for later, use /pause_generation")}
_NO_POOL = "this server's memory belongs to its KV pool all the time"
_OWN_WORDS = OnlyNeutral(("",), "answers say that they were aborted in the server's words")
ABORT_KIND = Kind({**_MODE, "abort_message": _OWN_WORDS, "finished_reason": _OWN_WORDS})
CONTINUE_KIND = Kind({"torch_empty_cache": Ignored(_NO_POOL)})


class AbortRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /abort_request: a rid, or all. `rid` may be that of one request, of one prompt
    with its samples, or of a batch."""

    rid: Annotated[str | None, Meta(description="The rid, exactly.")] = None
    prefix: Annotated[bool, Meta(description="Abort everything whose rid begins with `rid`.")] = (
        False
    )
    abort_all: Annotated[bool, Meta(description="All that came over HTTP; for admins.")] = False


class PauseRequest(Struct, forbid_unknown_fields=True, frozen=True):
    """The body of /pause_generation."""

    mode: Annotated[
        PauseMode,
        Meta(
            description="What becomes of the requests that have come. `abort`: they end, with "
            "finish `abort`. `retract`: they go back to the queue, so that the cache can be "
            "flushed. `in_place`: they stay in the batch. Requests that come later wait."
        ),
    ] = "abort"


class ContinueRequest(Struct, forbid_unknown_fields=True, frozen=True):
    """The body of /continue_generation, in which nothing can be chosen."""


class Paused(Struct, frozen=True, kw_only=True):
    """The answer of /pause_generation and /continue_generation."""

    status: str = "ok"
    message: str


class Aborted(Struct, frozen=True, kw_only=True):
    """The answer of /abort_request: the requests that were still there."""

    aborted: list[str]


class Flushed(Struct, frozen=True, kw_only=True):
    """The answer of /flush_cache."""

    flushed: bool = True


class Tree(Struct, frozen=True, kw_only=True):
    """The answer of /tree: for each replica its number, its tree and its queue."""

    replicas: list[dict[str, Any]]


class EdgeText(Struct, frozen=True, kw_only=True):
    """The answer of /ui/text: the text of a node's `tokens`, of which the end is `cut` if it is
    long."""

    text: str
    tokens: int
    cut: bool


class ModelInfo(Struct, frozen=True, kw_only=True):
    """The answer of /get_model_info. `media_placeholders` are what stands for an "image" or a
    "video" in a text; null while the server does not know it yet."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    context_length: int
    max_total_tokens: int
    bos_token_id: int | None
    fingerprint: str = ""
    is_generation: bool = True
    has_image_understanding: bool = False
    media_placeholders: dict[str, str] | None = {}
    preferred_sampling_params: dict[str, Any] | None = None


class TokenizerInfo(Struct, frozen=True, kw_only=True):
    """The answer of /tokenizer_info, in the words of a `tokenizer_config.json`: texts of special
    tokens, null for those that the model does not have."""

    vocab_size: int
    model_max_length: int
    add_bos_token: bool
    add_eos_token: bool
    bos_token: str | None = None
    eos_token: str | None = None
    unk_token: str | None = None
    pad_token: str | None = None
    chat_template: str | None = None


class RingState(Struct, frozen=True, kw_only=True):
    """The ring as last heard; `parts` are its processes. `epoch` grows when everything in flight
    has failed, `incarnation` also when a scheduler was lost, whose requests then go on;
    `incarnations` has one for each replica. `silent` are the processes of which nothing is heard,
    the launcher among them."""

    ready: bool
    draining: bool
    epoch: int
    parts: dict[str, str]
    reason: str
    incarnation: int
    incarnations: list[int]
    silent: list[str]


class Health(Struct, frozen=True, kw_only=True):
    """The answer of /health; `ring` is null before the first word from it."""

    ring: RingState | None
    status: str = "ok"


class Ready(Struct, frozen=True, kw_only=True):
    """The answer of /ready."""

    ready: bool
    ring: RingState | None


class Generated(Struct, frozen=True, kw_only=True):
    """The answer of /health_generate: why the model is known to work, and how long it took."""

    evidence: str
    seconds: float
    status: str = "ok"


class ProfileStarted(Struct, frozen=True, kw_only=True):
    """The answer of /start_profile."""

    started: bool = True


class Profile(Struct, frozen=True, kw_only=True):
    """The answer of /stop_profile: the seconds since the start, and what every counter of the
    scheduler gained in them."""

    seconds: float
    gained: dict[str, float]
