"""What `srt.LLM` refuses before it asks a server."""

from typing import Any

import pytest

from srt.llm import SamplingParams, StructuredOutputsParams, _text_and_ids
from srt.wire.errors import RequestError


def test_prompts_of_every_kind() -> None:
    assert _text_and_ids("a") == _text_and_ids({"prompt": "a"}) == ("a", None)
    assert _text_and_ids([1, 2]) == _text_and_ids({"prompt_token_ids": (1, 2)}) == (None, [1, 2])
    assert _text_and_ids({"prompt": "a", "prompt_token_ids": [1]}) == ("a", [1])


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "multi_modal_data"),
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
    ],
)
def test_prompts_that_say_more_or_nothing_are_refused(prompt: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        _text_and_ids(prompt)
    assert caught.value.info.param == param


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_all_log_probabilities_cannot_be_had(name: str) -> None:
    """In vLLM, -1 stands for all of them."""
    asked: dict[str, Any] = {name: -1}
    with pytest.raises(RequestError, match=f"{name} must be 0 or more"):
        SamplingParams(**asked).request()
    asked[name] = 0
    assert SamplingParams(**asked).request()["return_logprob"]


def test_a_schema_that_allows_everything_is_a_constraint() -> None:
    assert StructuredOutputsParams(json={}).fields() == {"json_schema": {}}
    for params in (StructuredOutputsParams(), StructuredOutputsParams(json_object=False)):
        with pytest.raises(ValueError, match="exactly one"):
            params.fields()
