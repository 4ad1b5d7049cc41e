"""The JSON of /generate and its neighbours, field by field as SGLang names them.

Requests list the honoured fields only; the others are in `fields`. The structs are also the
schema that the documentation shows.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import asdict

from srt.gateway.constraint.fields import native_constraint, sampling_of
from srt.gateway.constraint.wire import SamplingFields
from srt.gateway.wire.chat import ChatFields, Detail, FrameCount
from srt.wire.answer_meta import GENERATE, meta_struct
from srt.wire.constraint import Capture
from srt.wire.errors import RequestError
from srt.wire.hints import (
    MAX_DEADLINE_MS,
    MAX_DEPTH,
    MAX_GROUP_SIZE,
    MAX_HINT_CHARS,
    MAX_PRIORITY,
    MAX_TPOT_MS,
    MIN_PRIORITY,
    Hints,
    PerfClass,
)
from srt.wire.sampling import Int, SamplingParams

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Rid = Annotated[str, Meta(min_length=1, max_length=256)]
OwnRid = Annotated[Rid | None, Meta(description="The request's id; otherwise a new one.")]
Salt = Annotated[str, Meta(description="Prompts share KV under one salt only.")]
TimeoutMs = Annotated[
    Count, Meta(description="Milliseconds until it ends with its tokens so far; 0: never.")
]
RoutedReplica = Annotated[
    Count | None, Meta(description="The replica that is to serve it; otherwise the router chooses.")
]
LogprobEntry = tuple[float | None, int, str | None]
Modality = Literal["text", "image", "multi-images", "video"]


class ShownFile(Struct, forbid_unknown_fields=True, frozen=True):
    """A picture or video of /generate, with options: base64, a `data:` URL, or an http(s) URL of a
    host that the server fetches from. Of a video `num_frames` are shown, 0 is the model's
    default."""

    url: str
    detail: Detail = "auto"
    num_frames: FrameCount = 0


Shown = str | ShownFile
ShownData = Shown | list[Shown | list[Shown | None] | None] | None
Interval = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class HintsIn(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True):
    """What the request is part of, for `--schedule-policy app`; see `srt.wire.hints`."""

    app: Annotated[str, Meta(max_length=MAX_HINT_CHARS)] = ""
    perf: PerfClass = ""
    group: Annotated[str, Meta(max_length=MAX_HINT_CHARS)] = ""
    group_size: Annotated[int, Meta(ge=0, le=MAX_GROUP_SIZE)] = 0
    depth: Annotated[int, Meta(ge=0, le=MAX_DEPTH)] = 0
    deadline_ms: Annotated[int, Meta(ge=0, le=MAX_DEADLINE_MS)] = 0
    tpot_ms: Annotated[float, Meta(ge=0, le=MAX_TPOT_MS)] = 0.0


_HINTS = "What it is part of: `app`, `perf`, `group`, `depth`, `deadline_ms`, `tpot_ms`."
GivenHints = Annotated[HintsIn | None, Meta(description=_HINTS)]
Priority = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
GivenTier = Annotated[
    Literal["auto", "default", "flex", "priority"] | None,
    Meta(description="Its class among its caller's requests; auto: by the sign of `priority`."),
]
SmallestFirst = Annotated[
    Priority | None,
    Meta(description="Among its caller's requests the smaller is first, as in vLLM."),
]


def hints_of(body: Struct) -> Hints | None:
    """The hints of a body, if it has some."""
    given: HintsIn | None = getattr(body, "hints", None)
    return None if given is None else Hints(**asdict(given))


def shared_fields(body: Struct, index: int | None = None) -> dict[str, Any]:
    """The fields of `body` that go into the client's request unchanged. A prompt of several has
    an `index`, which its id ends with."""
    names = ("rid", "cache_salt", "timeout_ms", "routed_replica")
    fields = {name: getattr(body, name) for name in names if hasattr(body, name)}
    if hasattr(body, "hints"):
        fields["hints"] = hints_of(body)
    if index is not None and fields["rid"]:
        fields["rid"] += f"_{index}"
    return fields


class NativeSampling(SamplingFields, kw_only=True, frozen=True):
    """The `sampling_params` of /generate."""

    max_new_tokens: Annotated[
        Int | None, Meta(description="0 computes the prompt only; null: all the room there is.")
    ] = 128
    min_new_tokens: Annotated[Int, Meta(description="No stop before this many tokens.")] = 0
    sampling_seed: Annotated[Int | None, Meta(description="Another name of seed.")] = None
    stream_interval: Annotated[
        Interval | None, Meta(description="Tokens between two events of a stream.")
    ] = None

    def to_params(self) -> SamplingParams:
        """The same as the ring's own type. RequestError if there are two constraints or seeds."""
        if None not in (self.seed, self.sampling_seed) and self.seed != self.sampling_seed:
            raise RequestError(" and sampling_seed are one field: give one", at="seed")
        return sampling_of(
            self,
            native_constraint(self),
            self.constraint_after or "",
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            seed=self.seed if self.sampling_seed is None else self.sampling_seed,
        )


class RequestBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Fields of bodies that have no sampling parameters of their own."""

    rid: OwnRid = None
    cache_salt: Salt = ""


class NativeRequest(ChatFields, kw_only=True, frozen=True):
    """The body of /generate. Exactly one of text, input_ids and messages is given."""

    text: Annotated[str | list[str] | None, Meta(description="A prompt, or several.")] = None
    input_ids: Annotated[
        list[TokenId | list[TokenId]] | None, Meta(description="Token ids, or lists of them.")
    ] = None
    sampling_params: Annotated[
        NativeSampling | list[NativeSampling],
        Meta(description="For all prompts, or one per prompt."),
    ] = field(default_factory=NativeSampling)
    rid: Annotated[
        Rid | list[Rid] | None,
        Meta(description="The request's id; with several prompts a list, or a prefix."),
    ] = None
    return_logprob: Annotated[
        bool | list[bool], Meta(description="Add log-probabilities; for all, or per prompt.")
    ] = False
    logprob_start_len: Annotated[
        Int | list[Int] | None,
        Meta(description="First prompt position with a log-probability; -1 is none."),
    ] = None
    top_logprobs_num: Annotated[
        Count | list[Count], Meta(description="How many likely tokens of each position.")
    ] = 0
    token_ids_logprob: Annotated[
        list[TokenId | list[TokenId] | None],
        Meta(description="Ids whose log-probabilities are added; for all, or a list per prompt."),
    ] = field(default_factory=list)
    return_text_in_logprobs: Annotated[
        bool, Meta(description="Add each token's text to its log-probability.")
    ] = False
    return_prompt_token_ids: Annotated[
        bool, Meta(description="Add `prompt_token_ids` to the answer.")
    ] = False
    stream: Annotated[bool, Meta(description="Answer with server-sent events.")] = False
    incremental: Annotated[
        bool, Meta(description="Events of a stream have what is new, and `start`, its place.")
    ] = False
    cache_salt: Annotated[
        str | list[str], Meta(description="Prompts share KV under one salt only.")
    ] = ""
    extra_key: Annotated[str | list[str], Meta(description="Another name of cache_salt.")] = ""
    literal_spans: Annotated[
        list[tuple[Count, Count]],
        Meta(description="Parts of the one text, [start, stop], in which control tokens are text."),
    ] = field(default_factory=list)
    timeout_ms: TimeoutMs = 0
    routed_replica: RoutedReplica = None
    hints: GivenHints = None
    priority: Annotated[
        Priority | None,
        Meta(description="Among its caller's requests the greater is first, as in SGLang."),
    ] = None
    service_tier: GivenTier = None
    prediction: Annotated[
        str,
        Meta(
            description="What the output of the one prompt will mostly be: tokens are guessed from "
            "it first."
        ),
    ] = ""
    image_data: Annotated[
        ShownData, Meta(description="Pictures, one for each placeholder; lists for each prompt.")
    ] = None
    video_data: Annotated[ShownData, Meta(description="Videos, in the same way.")] = None
    modalities: Annotated[
        list[Modality], Meta(description="Changes nothing: the two fields above say what is shown.")
    ] = field(default_factory=list)


class FinishReason(Struct, frozen=True, kw_only=True):
    """Why the text ended: a stop (what matched), the length, the time, or an abort (why).

    `steered` positions of a constrained output were chosen so that it ends within its limit, if
    any were; `closed` says whether it did."""

    type: Literal["stop", "length", "timeout", "abort"]
    matched: int | str | UnsetType | None = UNSET
    steered: int | UnsetType = UNSET
    closed: bool | UnsetType = UNSET
    length: int | UnsetType = UNSET
    message: str | UnsetType = UNSET
    status_code: int | UnsetType | None = UNSET
    err_type: str | UnsetType | None = UNSET


class MetaInfo(meta_struct(GENERATE), frozen=True, kw_only=True):  # type: ignore[call-arg,misc]
    """Facts about one answer. Entries of log-probabilities are [logprob, token id, text or null].

    `normalized_prompt_logprob` is the mean of the prompt's log-probabilities. `captures` are at the
    end of an answer whose constraint has names for parts of it. Times are at the end. If tokens
    were drafted, `spec_accept_length` is how many output tokens a step that verified some gave on
    average.
    """

    id: str
    finish_reason: FinishReason | None
    e2e_latency: float
    input_token_logprobs: list[LogprobEntry] | UnsetType = UNSET
    output_token_logprobs: list[LogprobEntry] | UnsetType = UNSET
    input_top_logprobs: list[list[LogprobEntry] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[LogprobEntry] | None] | UnsetType = UNSET
    input_token_ids_logprobs: list[list[LogprobEntry] | None] | UnsetType = UNSET
    output_token_ids_logprobs: list[list[LogprobEntry] | None] | UnsetType = UNSET
    normalized_prompt_logprob: float | UnsetType | None = UNSET
    captures: list[Capture] | UnsetType = UNSET


class NativeResponse(Struct, frozen=True, kw_only=True):
    """One answer, or one snapshot of it; `text` and `output_ids` are cumulative. In an incremental
    stream `text` is what is new; `output_ids`, their log-probabilities and their `token_origins`
    are those from the position `start` on, and replace what earlier events had there. Only the
    first event has `prompt_token_ids`. Log-probabilities of the prompt, and their mean, are in the
    events that have more of them than those before, and are all that are known."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    prompt_token_ids: list[int] | UnsetType = UNSET
    index: int | UnsetType = UNSET
    start: int | UnsetType = UNSET
