"""From the body of /generate to the prompts that the ring takes, and back for field names."""

from functools import partial
from typing import Any

from srt.errors import RequestError
from srt.gateway.batch import renamed
from srt.gateway.wire_native import NativeRequest, NativeSampling
from srt.generation import Request
from srt.sampling_params import SamplingParams

_SAMPLING_FIELDS = frozenset(NativeSampling.__struct_fields__)


def prompts_of(body: NativeRequest) -> tuple[list[Request], bool]:
    """The prompts of a body, and whether the answer is a list."""
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("exactly one of text and input_ids must be given", param="text")
    name = "text" if body.text is not None else "input_ids"
    values: list[Any]
    if isinstance(body.text, str):
        values, is_list = [body.text], False
    elif body.text is not None:
        values, is_list = body.text, True
    else:
        values, is_list = _id_lists(body.input_ids or [])
    if not values:
        raise RequestError(f"{name} must not be empty", param=name)
    samplings = _per_prompt(body.sampling_params, len(values), "sampling_params")
    rids = _rids(body.rid, len(values), is_list)
    salt = _cache_salt(body)
    prompts = [
        Request(
            stream=body.stream,
            sampling=_params(sampling, body, index),
            text=value if name == "text" else None,
            input_ids=value if name == "input_ids" else None,
            rid=rid,
            cache_salt=salt,
            return_logprob=body.return_logprob,
            logprob_start_len=body.logprob_start_len,
        )
        for index, (value, sampling, rid) in enumerate(zip(values, samplings, rids, strict=True))
    ]
    return prompts, is_list


def _params(sampling: NativeSampling, body: NativeRequest, index: int) -> SamplingParams:
    try:
        return sampling.to_params()
    except RequestError as exc:
        raise renamed(exc, partial(rename_param, body, False), index) from exc


def _id_lists(ids: list[Any]) -> tuple[list[list[int]], bool]:
    lists = [item for item in ids if isinstance(item, list)]
    if not lists:
        if not ids:
            raise RequestError("input_ids must not be empty", param="input_ids")
        return [ids], False
    if len(lists) != len(ids):
        raise RequestError("input_ids must not mix ids and lists of ids", param="input_ids")
    return lists, True


def _per_prompt(
    value: NativeSampling | list[NativeSampling], count: int, name: str
) -> list[NativeSampling]:
    if isinstance(value, NativeSampling):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"{name} must have one entry per prompt ({count})", param=name)
    return value


def _rids(rid: str | list[str] | None, count: int, is_list: bool) -> list[str | None]:
    if rid is None:
        return [None] * count
    if isinstance(rid, str):
        return [f"{rid}_{i}" for i in range(count)] if is_list else [rid]
    if len(rid) != count:
        raise RequestError(f"rid must have one entry per prompt ({count})", param="rid")
    if len(set(rid)) != count:
        raise RequestError("rid must not repeat an id", param="rid")
    return list(rid)


def _cache_salt(body: NativeRequest) -> str:
    if body.cache_salt and body.extra_key and body.cache_salt != body.extra_key:
        raise RequestError("extra_key and cache_salt are one field: give one", param="extra_key")
    return body.cache_salt or body.extra_key


def rename_param(body: NativeRequest, is_list: bool, param: str | None, index: int) -> str | None:
    """The field of `body` that the ring's field `param` of prompt `index` came from."""
    if param in _SAMPLING_FIELDS:
        at = f"[{index}]" if isinstance(body.sampling_params, list) else ""
        return f"sampling_params{at}.{param}"
    if param in ("text", "input_ids") or (param is None and is_list):
        name = "text" if body.text is not None else "input_ids"
        return f"{name}[{index}]" if is_list else name
    return param
