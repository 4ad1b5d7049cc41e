"""The language over both transports: the ring's sockets, and HTTP."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import lang as sgl
from srt.wire.errors import RequestError
from tests.e2e.server import Server
from tests.lang.test_faults import until, within

LONG: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module", params=["ring", "http"])
def backend(request: pytest.FixtureRequest, server: Server) -> Iterator[sgl.RuntimeEndpoint]:
    url = server.ring if request.param == "ring" else server.url
    with sgl.RuntimeEndpoint(url) as backend:
        yield backend


@sgl.function
def story(s: Any) -> None:
    s += "Once upon a time" + sgl.gen("a", max_tokens=12, temperature=0)


def test_a_whole_answer_is_the_streamed_one(backend: sgl.RuntimeEndpoint) -> None:
    whole, streamed = story.run(backend=backend), story.run(backend=backend, stream=True)
    assert "".join(streamed.text_iter("a")) == whole["a"] != ""
    metas = [state.get_meta_info("a") or {} for state in (whole, streamed)]
    for name in ("finish_reason", "prompt_tokens", "completion_tokens", "output_ids"):
        assert metas[0][name] == metas[1][name]


def test_a_call_with_no_text_before_it_begins_with_bos(backend: sgl.RuntimeEndpoint) -> None:
    def body(s: Any) -> None:
        s += sgl.gen("a", max_tokens=4, temperature=0)

    def choose(s: Any) -> None:
        s += sgl.select("a", ["system", "zebra"])

    state = sgl.function(body).run(backend=backend)
    meta = state.get_meta_info("a")
    assert meta is not None and (meta["prompt_tokens"], meta["completion_tokens"]) == (1, 4)
    assert state.text() == state["a"] != ""
    chosen = sgl.function(choose).run(backend=backend)  # <|im_start|> is this model's BOS
    meta = chosen.get_meta_info("a")
    assert chosen["a"] == "system" and meta is not None and meta["prompt_tokens"] == 1
    assert all(row[0][0] is not None for row in meta["input_token_logprobs"])


def test_without_a_bos_token_the_error_says_so(
    backend: sgl.RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none() -> None:
        return None

    monkeypatch.setattr(backend._model, "bos_id", none)
    error = sgl.function(lambda s: s.__iadd__(sgl.gen("a"))).run(backend=backend).error()
    assert isinstance(error, RequestError) and "BOS" in str(error) and error.info.param == "text"


def test_log_probabilities_have_texts(backend: sgl.RuntimeEndpoint) -> None:
    details: Any = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}

    def body(s: Any, texts: bool) -> None:
        s += "Grüße an die" + sgl.gen(
            "a", max_tokens=6, temperature=0, return_text_in_logprobs=texts, **details
        )

    for stream in (False, True):
        state = sgl.function(body).run(True, backend=backend, stream=stream)
        meta = state.get_meta_info("a")
        assert meta is not None
        assert "".join(row[2] for row in meta["output_token_logprobs"]) == state["a"]
        texts = [row[2] for row in meta["input_token_logprobs"]]
        assert texts[0] == "Gr" and texts[-2:] == [" an", " die"]
        tops = [top for name in ("output", "input") for top in meta[f"{name}_top_logprobs"]]
        assert all(isinstance(row[2], str) for top in tops if top for row in top)
    plain = sgl.function(body).run(False, backend=backend).get_meta_info("a")
    assert plain is not None and plain["output_token_logprobs"][0][2] is None


def test_an_interrupted_batch_of_async_programs_ends_on_the_server(
    backend: sgl.RuntimeEndpoint, server: Server
) -> None:
    async def body(s: Any, i: int) -> None:
        s += f"Story {i}:" + sgl.gen("a", **(LONG if i else {"max_tokens": 1}))
        await s.get("a")

    calls = [(i,) for i in range(5)]
    states = sgl.function(body).run_batch(calls, backend=backend, generator_style=True)
    assert within(lambda: next(states)).error() is None
    with sgl.RuntimeEndpoint(server.ring) as watcher:
        until(lambda: watcher.get_server_info()["num_running_reqs"] == 4)
        within(states.close)
        until(lambda: watcher.get_server_info()["num_running_reqs"] == 0)


def test_the_models_name(backend: sgl.RuntimeEndpoint) -> None:
    name = backend.get_model_name()
    assert name == "smollm2" if backend.url.startswith("ipc:") else name.endswith(".gguf")


def test_programs_on_a_loop_of_their_own(backend: sgl.RuntimeEndpoint) -> None:
    async def main() -> list[str]:
        states = await asyncio.gather(*(story.arun(backend=backend) for _ in range(3)))
        return [state["a"] for state in states]

    assert len(set(asyncio.run(main()))) == 1
