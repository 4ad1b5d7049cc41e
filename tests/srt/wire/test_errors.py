"""Errors: their sentences, and the callers' own names for fields."""

import pytest

from srt.wire.errors import Names, RequestError

NAMES: Names = {"text": "prompt[1]", "tools[0].function": "tools[0]", "tools": "functions"}


@pytest.mark.parametrize(
    ("param", "named"),
    [
        ("text", "prompt[1]"),
        ("text[2].a", "prompt[1][2].a"),
        ("texts", "texts"),
        ("tools[0].function.name", "tools[0].name"),
        ("tools[1].function.name", "functions[1].function.name"),
    ],
)
def test_the_longest_known_part_of_a_path_is_renamed(param: str, named: str) -> None:
    info = RequestError(" must be good", at=param).renamed(NAMES).info
    assert (info.param, info.message) == (named, f"{named} must be good")


def test_whole_sentences_stay() -> None:
    info = RequestError("text is one word of these", param="text").renamed(NAMES).info
    assert (info.param, info.message) == ("prompt[1]", "text is one word of these")


def test_an_error_without_a_field_is_given_the_one_for_none() -> None:
    assert RequestError("no").renamed(NAMES).info.param is None
    assert RequestError("no").renamed({**NAMES, None: "prompt"}).info.param == "prompt"
    assert RequestError("no", param="n").renamed({None: "prompt"}).info.param == "n"
