"""The JSON of /score_choices and /v1/score, field by field. The requests' structs are also what
the documentation shows."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from srt.client.generation import ScoreOutput
from srt.gateway.wire.fields import Ignored, Kind
from srt.gateway.wire.native import Count, RequestBody, ShownData, TokenId
from srt.gateway.wire.openai import Usage

LABEL_KIND = Kind({"user": Ignored("an end-user label")})


class ScoreBody(RequestBody, kw_only=True, frozen=True):
    """The body of /score_choices. Exactly one of text and input_ids is the prefix."""

    continuations: Annotated[
        list[str | list[TokenId]],
        Meta(description="Texts or lists of token ids, none of them empty."),
    ]
    text: Annotated[str | None, Meta(description="The prefix.")] = None
    input_ids: Annotated[list[TokenId] | None, Meta(description="The prefix's token ids.")] = None
    literal_spans: Annotated[
        list[tuple[Count, Count]],
        Meta(description="Parts of `text`, [start, stop], in which control tokens are text."),
    ] = field(default_factory=list)
    image_data: Annotated[
        ShownData, Meta(description="Pictures, one for each placeholder of the prefix.")
    ] = None
    video_data: Annotated[ShownData, Meta(description="Videos, in the same way.")] = None


class ScoredChoice(Struct, frozen=True, kw_only=True):
    """One continuation: its tokens from `start` on and the log-probability of each (null at
    position 0); their sum, their mean, and its share of the probability of all choices."""

    index: int
    token_ids: list[int]
    logprobs: list[float | None]
    total_logprob: float
    mean_logprob: float
    probability: float


class ScoreResponse(Struct, frozen=True, kw_only=True):
    """The answer of /score_choices. `start` is the first scored position."""

    id: str
    choices: list[ScoredChoice]
    start: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    e2e_latency: float


class LabelBody(RequestBody, kw_only=True, frozen=True):
    """The body of /v1/score. Query and items are all texts or all token ids."""

    query: Annotated[str | list[TokenId], Meta(description="What all prompts have in common.")]
    items: Annotated[
        str | list[str | list[TokenId]], Meta(description="What each prompt adds to the query.")
    ]
    label_token_ids: Annotated[
        list[TokenId], Meta(description="The tokens whose probabilities are asked for.")
    ]
    apply_softmax: Annotated[
        bool, Meta(description="Probabilities among the labels, not among all tokens.")
    ] = False
    item_first: Annotated[bool, Meta(description="The query comes after the item.")] = False
    model: Annotated[str | None, Meta(description="The served name or path.")] = None


class LabelScores(Struct, frozen=True, kw_only=True):
    """The answer of /v1/score: for each item, the probability of each label as its next token."""

    id: str
    scores: list[list[float]]
    model: str
    usage: Usage
    object: Literal["scoring"] = "scoring"


def score_response(output: ScoreOutput, latency_s: float) -> ScoreResponse:
    """`output` as JSON shows it."""
    pairs = zip(output.choices, output.probabilities, strict=True)
    choices = [
        ScoredChoice(
            index=index,
            token_ids=choice.token_ids,
            logprobs=choice.logprobs,
            total_logprob=choice.total,
            mean_logprob=choice.mean,
            probability=probability,
        )
        for index, (choice, probability) in enumerate(pairs)
    ]
    return ScoreResponse(
        id=output.rid,
        choices=choices,
        start=output.start,
        prompt_tokens=output.prompt_tokens,
        cached_tokens=output.cached_tokens,
        computed_tokens=output.computed_tokens,
        e2e_latency=latency_s,
    )
