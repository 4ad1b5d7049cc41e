"""The facts of an answer: an API shows all that its table does not hide."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from srt.wire.answer_meta import (
    GENERATE,
    NO_META,
    PROGRAMS,
    USAGE,
    AnswerMeta,
    PrefixEnd,
    facts,
    facts_of,
    meta_of,
    meta_struct,
    updated,
)

APIS = (GENERATE, PROGRAMS, USAGE)


def different() -> AnswerMeta:
    """Facts that all differ from their defaults, and from each other."""
    values: dict[str, Any] = {}
    for number, field in enumerate(structs.fields(AnswerMeta), 1):
        kind = type(field.default)
        values[field.name] = "s" if kind is str else number if kind is int else number / 2
    values["hints_lowered"] = True
    values["prefix"] = PrefixEnd(5, 20, "a", "b")
    return AnswerMeta(**values)


def test_a_new_fact_is_shown_everywhere() -> None:
    """Nothing but its field names `retractions`."""
    for api in APIS:
        assert meta_of(AnswerMeta(retractions=3), api)["retractions"] == 3
        assert "retractions" not in meta_of(NO_META, api)


@pytest.mark.parametrize("api", [GENERATE, PROGRAMS])
def test_what_is_shown_can_be_read(api: str) -> None:
    meta = different()
    shown = meta_of(meta, api)
    answer = meta_struct(api)(**shown)
    payload = msgspec.json.decode(msgspec.json.encode(answer))
    assert payload == msgspec.to_builtins(shown)
    read = AnswerMeta(**facts_of(payload, api))
    hidden = {name for name, value in facts(read).items() if value != getattr(meta, name)}
    assert hidden == {name for name in hidden if getattr(read, name) == getattr(NO_META, name)}
    assert not hidden if api == GENERATE else "queued_s" in hidden


def test_details_of_a_usage_can_be_added() -> None:
    assert all(type(value) is int for value in meta_of(different(), USAGE).values())


def test_an_update_leaves_what_it_does_not_know() -> None:
    meta = AnswerMeta(prompt_tokens=5, retractions=1)
    assert updated(meta, NO_META) == meta
    assert updated(meta, AnswerMeta(retractions=2)) == AnswerMeta(prompt_tokens=5, retractions=2)
    assert updated(NO_META, different()) == different()


def test_the_speculation_of_an_answer() -> None:
    assert "spec_accept_length" not in meta_of(AnswerMeta(drafted=2), GENERATE)
    shown = meta_of(AnswerMeta(verified=2, drafted=5, accepted=3), GENERATE)
    assert shown["spec_accept_length"] == 2.5
