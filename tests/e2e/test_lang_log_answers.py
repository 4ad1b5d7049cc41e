"""What logs have of answers on the real model: a replay's meta info, values and errors are those of
the first run, for every primitive and back end."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

import lang as sgl
from tests.e2e.server import Server

Numbers = Annotated[list[Annotated[int, Meta(ge=0, le=99)]], Meta(max_length=3)]


@pytest.fixture(scope="module", params=["ring", "http", "chat", "completions"])
def backend(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    if request.param in ("ring", "http"):
        with sgl.RuntimeEndpoint(server.ring if request.param == "ring" else server.url) as made:
            yield made
    else:
        is_chat = request.param == "chat"
        with sgl.OpenAI(
            "smollm2", is_chat_model=is_chat, base_url=f"{server.url}/v1", dialect="sglang"
        ) as openai:
            yield openai


@sgl.function
def everything(s: Any, is_ours: bool) -> None:
    s += sgl.user("Name a colour, and a year.")
    s += sgl.assistant_begin()
    s += sgl.gen("plain", max_tokens=4, stop=["\n", "."])
    s += sgl.assistant_end() + sgl.user("And?") + sgl.assistant_begin()
    s += sgl.gen("year", regex="(?P<century>[12][0-9])(?P<rest>[0-9]{2})", max_tokens=8)
    s += sgl.assistant_end() + sgl.user("And?") + sgl.assistant_begin()
    s += sgl.gen("list", schema=Numbers, max_tokens=60)
    s += sgl.assistant_end() + sgl.user("And?") + sgl.assistant_begin()
    s += sgl.select("choice", ["red", "blue"])
    s += sgl.assistant_end()
    if not is_ours:
        return
    s += sgl.gen("rows", max_tokens=4, return_logprob=True, top_logprobs_num=3)
    s += sgl.gen("texts", max_tokens=3, return_logprob=True, return_text_in_logprobs=True)
    s += sgl.gen("several", max_tokens=3, n=2, return_logprob=True, logprob_start_len=0)
    s += sgl.gen("number", dtype=float, max_tokens=6)
    s += sgl.gen("until", max_tokens=12, stop_regex="[aeiou] ")
    method = sgl.unconditional_likelihood_normalized
    s += sgl.select("other", ["red", "blue"], choices_method=method)
    s += sgl.distribution("chances", ["a", "b"])
    s += sgl.separate_reasoning(sgl.gen("thought", regex="<think>[a-z]{3}</think>(yes|no)"))


def told(state: sgl.ProgramState) -> Any:
    error = state.error()
    values = {name: (value, repr(value)) for name, value in state.vars().items()}
    return values, {name: state.get_meta_info(name) for name in values}, state.text(), repr(error)


def test_a_replay_has_all_of_the_answers(backend: Any, tmp_path: Path) -> None:
    is_ours = isinstance(backend, sgl.RuntimeEndpoint)
    path = tmp_path / "run.jsonl"
    first = everything.run(is_ours, backend=backend, log=path, temperature=0.8)
    expected = told(first), first.certificate()
    assert first.error() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = everything.run(is_ours, backend=backend, log=path, temperature=0.8)
        assert (told(again), again.certificate()) == expected
    assert all(call.from_log for call in again.trace())
