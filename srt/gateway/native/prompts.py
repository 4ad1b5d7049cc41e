"""Turns the body of /generate into the ring's requests, and the ring's field names back."""

from functools import partial
from typing import Any, NamedTuple, TypeVar

from srt.client.generation import Request, scoring_of
from srt.gateway.batch import check_prediction, check_size
from srt.gateway.context import GatewayInfo
from srt.gateway.media.given import NO_MEDIA, MediaList, MediaRules
from srt.gateway.native.shown import media_of
from srt.gateway.openai.chat import OPTION_NAMES, chat_prompt
from srt.gateway.wire.native import NativeRequest, NativeSampling, hints_of
from srt.wire.errors import Names, RequestError, renaming
from srt.wire.sampling import SamplingParams, Scoring

T = TypeVar("T")

_SAMPLING_FIELDS = frozenset(NativeSampling.__struct_fields__)
_BODY_NAMES: Names = {  # by the ring's, where they differ
    "top_logprobs": "top_logprobs_num",
    "logprob_token_ids": "token_ids_logprob",
    "media": "image_data",
    **OPTION_NAMES,
}
_PROMPTS = ("text", "input_ids", "messages")


class Prompts(NamedTuple):
    """The requests of a body: one for each prompt, all with the same number of samples.

    `is_list`: the prompts came as a list. `intervals` are tokens between two events of a stream,
    per prompt; None is the server's choice. `media` are what each prompt shows.
    """

    requests: list[Request]
    is_list: bool
    samples: int
    intervals: list[int | None]
    media: list[MediaList]

    @property
    def answers_list(self) -> bool:
        """Whether the answer is a list."""
        return self.is_list or self.samples > 1


def prompts_of(
    body: NativeRequest, info: GatewayInfo, rules: MediaRules = NO_MEDIA, template: str = ""
) -> Prompts:
    """The prompts of a body, at most `info.max_requests` with their samples; `rules` say what they
    may show, and `template` is the model's, for chats. Raises RequestError naming the field that is
    wrong."""
    name = _prompt_field(body)
    values, is_list = _values(body, info)
    if not values:
        raise RequestError(" must not be empty", at=name)
    if body.literal_spans:
        _check_spans(body)
    count = len(values)
    samplings = _per_prompt(body.sampling_params, count, "sampling_params")
    samples = _samples(samplings)
    check_size(count, samples, info.max_requests, name)
    check_prediction(body.prediction, count)
    scorings, salts = _scorings(body, samplings), _salts(body, count)
    rids = _rids(body.rid, count, is_list)
    media = media_of(body, count, is_list, rules)
    hints = hints_of(body)
    chat = chat_prompt(body, template, media[0], ("user",))
    if body.return_prompt_token_ids and any(each.given for each in media):
        at = next(each.names["media"] for each in media if each.given)
        raise RequestError(" and return_prompt_token_ids exclude each other", at=at)
    requests = [
        Request(
            stream=body.stream,
            sampling=_params(samplings[i], body, i),
            scoring=scorings[i],
            cache_salt=salts[i],
            rid=rids[i],
            timeout_ms=body.timeout_ms,
            routed_replica=body.routed_replica,
            prediction=body.prediction,
            hints=hints,
            priority=body.priority or 0,
            service_tier=body.service_tier or "",
            literal_spans=tuple(body.literal_spans),
            **(chat or {name: value}),
        )
        for i, value in enumerate(values)
    ]
    intervals = [sampling.stream_interval for sampling in samplings]
    return Prompts(requests, is_list, samples, intervals, media)


def _prompt_field(body: NativeRequest) -> str:
    """The one field that has the prompts."""
    given = [name for name in _PROMPTS if getattr(body, name) is not None]
    if len(given) != 1:
        reason = "exactly one of text, input_ids and messages must be given"
        raise RequestError(reason, param="text")
    return given[0]


def _values(body: NativeRequest, info: GatewayInfo) -> tuple[list[Any], bool]:
    """The prompts, and whether they came as a list. A chat is one prompt."""
    if body.messages is not None:
        return [body.messages], False
    if isinstance(body.text, str):
        return [body.text], False
    if body.text is not None:
        return [*body.text], True
    info.check_entries(body.input_ids or [], "input_ids")
    return _id_lists(body.input_ids or [])


def _check_spans(body: NativeRequest) -> None:
    name = "literal_spans"
    if not isinstance(body.text, str):
        raise RequestError(" need one text", at=name)
    if body.return_prompt_token_ids:
        raise RequestError(" and return_prompt_token_ids exclude each other", at=name)


def _scorings(body: NativeRequest, samplings: list[NativeSampling]) -> list[Scoring | None]:
    """The log-probabilities that each prompt's answer has."""
    count = len(samplings)
    starts: list[Any] = _per_prompt(body.logprob_start_len, count, "logprob_start_len")
    columns = (
        _per_prompt(body.return_logprob, count, "return_logprob"),
        [_default_start(s) if i is None else i for i, s in zip(starts, samplings, strict=True)],
        _per_prompt(body.top_logprobs_num, count, "top_logprobs_num"),
        _named_ids(body.token_ids_logprob, count),
    )
    with renaming(partial(names_of, body, False, 0)):
        return [scoring_of(*row) for row in zip(*columns, strict=True)]


def _default_start(sampling: NativeSampling) -> int:
    """A request that generates nothing can only get the prompt's log-probabilities."""
    return 0 if sampling.max_new_tokens == 0 else -1


def _samples(samplings: list[NativeSampling]) -> int:
    for index, sampling in enumerate(samplings):
        if sampling.n != samplings[0].n:
            param = f"sampling_params[{index}].n"
            raise RequestError(" must be the same for all prompts", at=param)
    return samplings[0].n


def _params(sampling: NativeSampling, body: NativeRequest, index: int) -> SamplingParams:
    with renaming(partial(names_of, body, False, index)):
        params = sampling.to_params()
        params.check_count()
        return params


def _id_lists(ids: list[Any]) -> tuple[list[list[int]], bool]:
    lists = [item for item in ids if isinstance(item, list)]
    if not lists:
        if not ids:
            raise RequestError(" must not be empty", at="input_ids")
        return [ids], False
    if len(lists) != len(ids):
        raise RequestError(" must not mix ids and lists of ids", at="input_ids")
    return lists, True


def _named_ids(value: list[Any], count: int) -> list[list[int]]:
    """The ids of token_ids_logprob for each prompt: one list for all, or a list per prompt."""
    name = "token_ids_logprob"
    lists = [item for item in value if not isinstance(item, int)]
    if not lists:
        return [value] * count
    if len(lists) != len(value):
        raise RequestError(" must not mix ids and lists of ids", at=name)
    return [ids or [] for ids in _per_prompt(lists, count, name)]


def _per_prompt(value: T | list[T], count: int, name: str) -> list[T]:
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise RequestError(f" must have one entry per prompt ({count})", at=name)
    return value


def _rids(rid: str | list[str] | None, count: int, is_list: bool) -> list[str | None]:
    if rid is None:
        return [None] * count
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)] if is_list else [rid]
    if len(set(rid)) != len(rid):
        raise RequestError(" must not repeat an id", at="rid")
    given: list[str | None] = [*rid]
    return _per_prompt(given, count, "rid")


def _salts(body: NativeRequest, count: int) -> list[str]:
    salt, key = body.cache_salt, body.extra_key
    if salt and key and salt != key:
        raise RequestError(" and cache_salt are one field: give one", at="extra_key")
    return _per_prompt(salt or key, count, "cache_salt" if salt else "extra_key")


def names_of(body: NativeRequest, is_list: bool, index: int) -> Names:
    """The names of `body`'s fields by those of the ring's request for prompt `index`."""
    sampling, at = body.sampling_params, ""
    if isinstance(sampling, list):
        sampling, at = sampling[index], f"[{index}]"
    prompt = f"{_prompt_field(body)}[{index}]" if is_list else _prompt_field(body)
    names: dict[str | None, str] = {f: f"sampling_params{at}.{f}" for f in _SAMPLING_FIELDS}
    if sampling.seed is None:
        names["seed"] = names["sampling_seed"]
    names |= {**_BODY_NAMES, "text": prompt, "input_ids": prompt}
    if body.messages is not None:
        names["media"] = prompt
    return names | {None: prompt} if is_list else names
