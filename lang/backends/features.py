"""What models of providers take: data by model's name, which a user may override.

A back end refuses by name what its model lacks, before it asks anything. A feature is the name of
a sampling parameter, or one of those in `OTHERS`. The tables follow the providers' documents; for a
model that they do not know yet, the last row of its table holds.
"""

import re
from collections.abc import Iterable
from typing import Any

from lang.backends.sampling import Sampling, is_neutral
from lang.errors import UnsupportedError
from srt.wire.errors import ConfigError

OTHERS = {
    "schema": "answers that follow a JSON Schema",
    "images": "images in prompts",
    "prefill": "the answer continues an open assistant turn",
    "cache": "marks of prompts' beginnings that the provider keeps",
    "several": "`n` answers to one request",
    "system_later": "turns of the system after others",
}
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "logit_bias", "seed", "stop", "return_logprob", "min_tokens"),
    *("reasoning_effort", "verbosity", "service_tier", "extra_body"),
)
FEATURES = frozenset({*_SAMPLING, *OTHERS})
_ALWAYS = {"max_tokens", "n", "timeout_s", "stop", "regex", "json_schema", "extra_body"}
# Of parameters that only mean something with another one.
_OF_LOGPROBS = {"top_logprobs_num", "return_text_in_logprobs"}

Table = tuple[tuple[str, frozenset[str]], ...]


def _row(pattern: str, names: str) -> tuple[str, frozenset[str]]:
    return pattern, frozenset(names.split())


_PLAIN = "temperature top_p frequency_penalty presence_penalty logit_bias seed stop return_logprob "
_REASONS = "seed reasoning_effort service_tier extra_body several schema images system_later"
OPENAI: Table = (
    _row("gpt-5[^/]*-chat", _PLAIN + _REASONS.replace("reasoning_effort", "")),
    _row(r"(o1|o3|o4)(?!\w)", _REASONS),
    _row("gpt-[5-9]", _REASONS + " verbosity"),
    _row(r"gpt-3\.5|gpt-4(?![\w.])", _PLAIN + "service_tier extra_body several system_later"),
    _row(
        "",
        _PLAIN + "service_tier extra_body several schema images system_later verbosity "
        "reasoning_effort",
    ),
)
# A server that is not OpenAI's: its fields of a chat, none of which is sent unless it is asked for.
COMPATIBLE: Table = (
    _row(
        "", _PLAIN + "service_tier extra_body schema images system_later verbosity reasoning_effort"
    ),
)
_CLAUDE = "stop schema images cache service_tier reasoning_effort extra_body"
# Of the API's version 2026-10-21, which has no parameters of sampling at all.
ANTHROPIC: Table = (
    _row(
        "claude-(3|instant|2|(opus|sonnet)-4-?0|(opus|sonnet)-4-2025)",
        "stop images cache prefill service_tier extra_body",
    ),
    _row("claude-opus-4-[15]|claude-(sonnet|haiku)-4-5", _CLAUDE + " prefill"),
    _row("", _CLAUDE),
)
# Of its version 2023-06-01.
ANTHROPIC_2023: Table = tuple(
    (pattern, names | {"temperature", "top_p", "top_k"} if pattern else names)
    for pattern, names in (
        *ANTHROPIC[:-1],
        _row("claude-(opus|sonnet)-4-6", _CLAUDE),
        ANTHROPIC[-1],
    )
)
_GEMINI = "temperature top_p top_k frequency_penalty presence_penalty seed stop schema images "
GEMINI: Table = (
    _row("gemma", "temperature top_p top_k stop several extra_body"),
    _row("gemini-1", "temperature top_p top_k stop several schema images extra_body"),
    _row("gemini-2.0", _GEMINI + "several extra_body service_tier"),
    _row("", _GEMINI + "several reasoning_effort extra_body service_tier"),
)


def features_of(
    table: Table, model: str, without: Iterable[str] = (), also: Iterable[str] = ()
) -> frozenset[str]:
    """The features of a model, less `without`, and those of `also`. Raises ConfigError for a name
    that is no feature."""
    without, also = _checked("without", without), _checked("also", also)
    name = model.rpartition("/")[2].lower()
    found = next(names for pattern, names in table if re.match(pattern, name))
    return found - without | also


def _checked(argument: str, names: Iterable[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise ConfigError(f"{argument} must be a set of names, not the text {names!r}")
    found = frozenset(names)
    if unknown := sorted(found - FEATURES):
        raise ConfigError(f"{argument}: no feature {unknown[0]!r}; there are {sorted(FEATURES)}")
    return found


def refuse_missing(
    sampling: Sampling, features: frozenset[str], who: str, advice: str = ""
) -> dict[str, Any]:
    """The parameters that `sampling` sets and the model takes. Raises UnsupportedError that names
    one which it lacks, unless its value is neutral."""
    given: dict[str, Any] = {}
    for name in sorted(sampling.set_fields()):
        value = getattr(sampling, name)
        needed = "return_logprob" if name in _OF_LOGPROBS else name
        if needed in features:
            given[name] = value
        elif name not in _ALWAYS and not is_neutral(name, value):
            raise UnsupportedError(name, f"{who} does not take it{advice}")
    return given
