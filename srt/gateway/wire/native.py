"""The JSON of /generate and its neighbours, field by field as SGLang names them.

Requests list the honoured fields only; the others are in `fields`. The structs are also the
schema that the documentation shows.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from srt.gateway.constraint.fields import constrained, native_constraint
from srt.gateway.constraint.wire import ConstraintFields
from srt.gateway.wire.fields import NATIVE, Kind
from srt.wire.constraint import Capture
from srt.wire.errors import RequestError
from srt.wire.sampling import MAX_SEED, SamplingParams

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Rid = Annotated[str, Meta(min_length=1, max_length=256)]
Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
LogprobEntry = tuple[float | None, int, str | None]
Interval = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class NativeSampling(ConstraintFields, kw_only=True, frozen=True):
    """The `sampling_params` of /generate."""

    max_new_tokens: Annotated[
        Count | None, Meta(description="0 computes the prompt only; null is all the room.")
    ] = 128
    min_new_tokens: Annotated[Count, Meta(description="No stop before so many tokens.")] = 0
    temperature: Annotated[float, Meta(description="0 is greedy.")] = 1.0
    top_p: Annotated[float, Meta(description="In (0, 1].")] = 1.0
    top_k: Annotated[Int, Meta(description="-1 is off.")] = -1
    min_p: Annotated[float, Meta(description="In [0, 1].")] = 0.0
    n: Annotated[Int, Meta(description="Completions of each prompt, which is computed once.")] = 1
    frequency_penalty: Annotated[
        float, Meta(description="Taken from a token's logit for each time it was generated.")
    ] = 0.0
    presence_penalty: Annotated[
        float, Meta(description="Taken once from the logit of each generated token.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, Meta(description="Divides positive logits of all tokens so far; 1 is off.")
    ] = 1.0
    logit_bias: Annotated[
        dict[TokenId, float], Meta(description="Token ids, and what is added to their logits.")
    ] = field(default_factory=dict)
    allowed_token_ids: Annotated[
        list[TokenId] | None, Meta(description="The only ids that may be generated.")
    ] = None
    bad_words: Annotated[list[str], Meta(description="Texts that must not be generated.")] = field(
        default_factory=list
    )
    stop: Annotated[
        str | list[str], Meta(description="Texts that end the output, and are cut off.")
    ] = field(default_factory=list)
    stop_token_ids: Annotated[list[Int], Meta(description="Ids that end the text.")] = field(
        default_factory=list
    )
    stop_regex: Annotated[
        str | list[str], Meta(description="Patterns whose first match ends the output.")
    ] = field(default_factory=list)
    no_stop_trim: Annotated[
        bool, Meta(description="Keep the stop string, or what the pattern matched.")
    ] = False
    ignore_eos: Annotated[bool, Meta(description="Go on after the end token.")] = False
    sampling_seed: Annotated[Seed | None, Meta(description="Repeatable sampling.")] = None
    seed: Annotated[Seed | None, Meta(description="Another name of sampling_seed.")] = None
    skip_special_tokens: Annotated[bool, Meta(description="Leave them out of the text.")] = True
    stream_interval: Annotated[
        Interval | None, Meta(description="Tokens between two events of a stream.")
    ] = None

    def to_params(self) -> SamplingParams:
        """The same as the ring's own type. RequestError if there are two constraints or seeds."""
        if None not in (self.seed, self.sampling_seed) and self.seed != self.sampling_seed:
            raise RequestError("seed and sampling_seed are one field: give one", param="seed")
        params = SamplingParams(
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed if self.sampling_seed is None else self.sampling_seed,
            n=self.n,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            allowed_token_ids=self.allowed_token_ids,
            bad_words=self.bad_words,
            stop=as_list(self.stop),
            stop_token_ids=self.stop_token_ids,
            stop_regex=as_list(self.stop_regex),
            no_stop_trim=self.no_stop_trim,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
        )
        return constrained(params, self, native_constraint(self), self.constraint_after or "")


class NativeRequest(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /generate. Exactly one of text and input_ids is given."""

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
        Count | list[Count], Meta(description="So many most likely tokens of each position.")
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
    cache_salt: Annotated[
        str | list[str], Meta(description="Prompts share KV under one salt only.")
    ] = ""
    extra_key: Annotated[str | list[str], Meta(description="Another name of cache_salt.")] = ""
    literal_spans: Annotated[
        list[tuple[Count, Count]],
        Meta(description="Parts of the one text, [start, stop], in which control tokens are text."),
    ] = field(default_factory=list)
    timeout_ms: Annotated[
        Count, Meta(description="Milliseconds until it ends with what it has; 0 is no limit.")
    ] = 0


class FinishReason(Struct, frozen=True, kw_only=True):
    """Why the text ended: a stop (what matched), the length, the time, or an abort (why)."""

    type: Literal["stop", "length", "timeout", "abort"]
    matched: int | str | UnsetType | None = UNSET
    length: int | UnsetType = UNSET
    message: str | UnsetType = UNSET
    status_code: int | UnsetType | None = UNSET
    err_type: str | UnsetType | None = UNSET


class MetaInfo(Struct, frozen=True, kw_only=True):
    """Facts about one answer. Entries of log-probabilities are [logprob, token id, text or null].

    Of the completion's tokens, `jump_forward_tokens` were forced by the constraint;
    `forward_passes` tells how often the model was asked for one. The first output ids take the
    place of the prompt's last `healed_tokens`. `normalized_prompt_logprob` is the mean of the
    prompt's log-probabilities. `captures` are at the end of an answer whose constraint has names
    for parts of it.
    """

    id: str
    finish_reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float
    jump_forward_tokens: int = 0
    forward_passes: int = 0
    healed_tokens: int = 0
    input_token_logprobs: list[LogprobEntry] | UnsetType = UNSET
    output_token_logprobs: list[LogprobEntry] | UnsetType = UNSET
    input_top_logprobs: list[list[LogprobEntry] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[LogprobEntry] | None] | UnsetType = UNSET
    input_token_ids_logprobs: list[list[LogprobEntry] | None] | UnsetType = UNSET
    output_token_ids_logprobs: list[list[LogprobEntry] | None] | UnsetType = UNSET
    normalized_prompt_logprob: float | UnsetType | None = UNSET
    captures: list[Capture] | UnsetType = UNSET


class NativeResponse(Struct, frozen=True, kw_only=True):
    """One answer, or one snapshot of it; `text` and `output_ids` are cumulative."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    prompt_token_ids: list[int] | UnsetType = UNSET
    index: int | UnsetType = UNSET


REQUEST_KIND: Kind = NATIVE


def as_list(value: str | list[str]) -> list[str]:
    """The one or several strings of a field as a list; "" is none."""
    if isinstance(value, str):
        return [value] if value else []
    return value
