"""What several prompts of an `Engine` show."""

from typing import Any

import pytest

from srt.offline.engine import _media_of
from srt.wire.errors import RequestError


def test_each_prompt_has_its_own() -> None:
    assert _media_of("a", {"media": [b"x"]}) == [[b"x"]]
    assert _media_of(["a", "b"], {"media": [[b"x"], []]}) == [[b"x"], []]
    for prompts in ("a", ["a"], []):
        assert _media_of(prompts, {}) == _media_of(prompts, {"media": []}) == ()


@pytest.mark.parametrize("media", [[[b"x"]], b"xy", b"x"])
def test_a_list_for_each(media: Any) -> None:
    with pytest.raises(RequestError, match="media must have a list for each of 2 prompts"):
        _media_of(["a", "b"], {"media": media})
