"""What each provider is sent, and that the official packages' clients accept the same servers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import lang as sgl
from lang.backends.base import Image, Prompt, Turn
from lang.backends.openai_host import openai_host
from lang.backends.sampling import Sampling
from lang.errors import UnsupportedError, original
from srt.wire.errors import ConfigError, RequestError
from tests.lang.providers.formats import AnthropicFormat, GeminiFormat, OpenAIFormat
from tests.lang.providers.scripted import Fault, Said, serving
from tests.lang.providers.setup import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    KEY,
    OPENAI,
    PLAIN,
    QUIET,
    Provider,
)

pytestmark = QUIET
TERSE = "You are terse. " * 9
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


# ---- Anthropic -----------------------------------------------------------------------------------


@sgl.function
def branches(s: Any, topic: str = "rain") -> None:
    s += sgl.system("You are terse.")
    s += sgl.user(f"Think of {topic}.")
    s += sgl.assistant(sgl.gen("thought"))
    forks = s.fork(2)
    for i, fork in enumerate(forks):
        fork += sgl.user(f"Question {i}?")
        fork += sgl.assistant(sgl.gen("answer"))
    forks.join()


def _marked(body: Any) -> list[str]:
    """The texts of the blocks with marks of the cache."""
    blocks = [*body.get("system", [])]
    blocks += [b for message in body["messages"] for b in message["content"]]
    return [block["text"] for block in blocks if "cache_control" in block]


def test_marks_of_the_cache_stand_at_forks_and_constant_beginnings() -> None:
    with serving(AnthropicFormat(), Said("hm")) as server:
        backend = ANTHROPIC.at(server.url)
        branches.run(backend=backend).sync()
        assert [_marked(body) for body in server.bodies] == [[], ["hm"], ["hm"]]
        unmarked = ANTHROPIC.at(server.url, cache=False)
        branches.run(backend=unmarked).sync()
        assert not any(map(_marked, server.bodies[3:]))
        unmarked.close()

        @sgl.function
        def shot(s: Any, question: str) -> None:
            s += sgl.system(TERSE)
            s += sgl.user(question)
            s += sgl.assistant(sgl.gen("answer"))

        states = shot.run_batch([{"question": "a?"}, {"question": "b?"}], backend=backend)
        assert [state["answer"] for state in states] == ["hm", "hm"]
        assert [_marked(body) for body in server.bodies[-2:]] == [[TERSE]] * 2
        assert states[0].get_meta_info("answer")["cached_tokens"] == 3
        backend.close()


def test_no_more_marks_than_the_api_takes() -> None:
    @sgl.function
    def deep(s: Any) -> None:
        for number in range(6):
            s += sgl.user(f"{number}?")
            s += sgl.assistant(sgl.gen())
            s = s.fork(1)[0]
        s += sgl.user("And?")
        s += sgl.assistant(sgl.gen("last"))
        s.sync()

    with serving(AnthropicFormat(), Said("hm")) as server:
        backend = ANTHROPIC.at(server.url)
        state = deep.run(backend=backend)
        state.sync()
        assert state.error() is None and len(server.requests) == 7
        assert [len(_marked(body)) for body in server.bodies] == [0, 1, 2, 3, 4, 4, 4]
        backend.close()


async def test_sampling_is_for_the_versions_and_models_that_take_it() -> None:
    cold = Sampling(max_tokens=9, temperature=0.2, top_k=3)
    with serving(AnthropicFormat(), Said("yes")) as server:
        old = ANTHROPIC.at(server.url, model="claude-sonnet-4-5", api_version="2023-06-01")
        await old.generate(CHAT, cold)
        assert (server.bodies[0]["temperature"], server.bodies[0]["top_k"]) == (0.2, 3)
        assert server.requests[0].headers["anthropic-version"] == "2023-06-01"
        for given in ({"model": "claude-sonnet-4-5"}, {"api_version": "2023-06-01"}):
            backend = ANTHROPIC.at(server.url, **given)
            with pytest.raises(UnsupportedError, match=r"temperature: .*api_version='2023-06-01'"):
                await backend.generate(CHAT, cold)
            await backend.generate(CHAT, Sampling(max_tokens=9, temperature=1.0))  # as without
            assert "temperature" not in server.bodies[-1]
            await backend.aclose()
        await old.aclose()


async def test_thoughts_efforts_and_images() -> None:
    seen = Prompt(
        "USER:What?\nASSISTANT:",
        messages=(Turn("user", "What?", (Image(PNG),), (0,)),),
        open_role="assistant",
        images=(Image(PNG),),
        image_places=(5,),
    )
    with serving(AnthropicFormat(), Said("A dot.", thoughts="Hm.")) as server:
        backend = ANTHROPIC.at(server.url, thinking="adaptive")
        answer = await backend.generate(seen, Sampling(reasoning_effort="low"))
        assert (answer.text, answer.meta["reasoning_content"]) == ("A dot.", "Hm.")
        last = [part async for part in backend.stream(seen, PLAIN)][-1]
        assert (last.text, last.meta["reasoning_content"]) == ("A dot.", "Hm.")
        body = server.bodies[0]
        assert body["thinking"] == {"type": "adaptive"}
        assert body["output_config"] == {"effort": "low"}
        kinds = [block["type"] for block in body["messages"][0]["content"]]
        assert kinds == ["image", "text"]
        await backend.aclose()
        blind = ANTHROPIC.at(server.url, without={"images"})
        with pytest.raises(UnsupportedError, match="text only"):
            await blind.generate(seen, PLAIN)
        await blind.aclose()
        with pytest.raises(ConfigError, match="thinking 'much'"):
            ANTHROPIC.at(server.url, thinking="much")


@pytest.mark.parametrize("provider", [ANTHROPIC, GEMINI, OPENAI], ids=lambda each: each.name)
async def test_images_of_tools_are_refused_not_left_out(provider: Provider) -> None:
    call, image = '{"tool": "look", "arguments": {}}', Image(PNG)
    turns = (Turn("user", "Look."), Turn("assistant", call), Turn("tool", "seen", (image,), (0,)))
    text = f"USER:Look.\nASSISTANT:{call}\nTOOL:seen\nASSISTANT:"
    seen = Prompt(text, messages=turns, open_role="assistant", images=(image,), image_places=(0,))
    with serving(provider.form(), Said("no")) as server:
        backend = provider.at(server.url)
        with pytest.raises(UnsupportedError, match="users only"):
            await backend.generate(seen, PLAIN)
        assert not server.requests
        await backend.aclose()


# ---- Gemini --------------------------------------------------------------------------------------


async def test_bodies_of_gemini() -> None:
    sampling = Sampling(
        max_tokens=7, temperature=0.0, top_k=3, seed=4, stop=("x",), reasoning_effort="low"
    )
    blocked = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    with serving(GeminiFormat(), Said("yes", thoughts="Hm.")) as server:
        backend = GEMINI.at(server.url, safety_settings=blocked)
        answer = await backend.generate(CHAT, sampling)
        assert (answer.meta["reasoning_content"], answer.meta["reasoning_tokens"]) == ("Hm.", 4)
        body = server.bodies[0]
        assert body["safetySettings"] == blocked
        assert body["generationConfig"] == {
            "maxOutputTokens": 7,
            "temperature": 0.0,
            "topK": 3,
            "seed": 4,
            "stopSequences": ["x"],
            "thinkingConfig": {"thinking_level": "LOW"},
        }
        assert body["systemInstruction"]["parts"] == [{"text": "Be brief."}]
        assert server.requests[0].headers["x-goog-api-key"] == KEY
        await backend.aclose()


def test_several_answers_to_one_request() -> None:
    @sgl.function
    def votes(s: Any) -> None:
        s += sgl.user("Yes or no?")
        s += sgl.assistant(sgl.gen("x", n=3, max_tokens=5))

    for provider, form in ((GEMINI, GeminiFormat()), (OPENAI, OpenAIFormat())):
        with serving(form, Said("yes")) as server:
            backend = provider.at(server.url, also={"several"})
            state = votes.run(backend=backend)
            assert state["x"] == ["yes"] * 3 and len(server.requests) == 1
            (call,) = state.trace()
            assert call.prompt_tokens == 5
            server.answers = [Fault(400, form.error(400, "no"))]
            assert isinstance(original(votes.run(backend=backend).error()), RequestError)
            backend.close()
            backend = provider.at(server.url, without={"several"})
            server.answers = [Said("yes")]
            before = len(server.requests)
            assert votes.run(backend=backend)["x"] == ["yes"] * 3
            assert len(server.requests) == before + 3
            backend.close()


# ---- OpenAI and Azure ----------------------------------------------------------------------------


async def test_accounts_efforts_and_bodies_of_openai() -> None:
    with serving(OpenAIFormat()) as server:
        backend = OPENAI.at(
            server.url,
            organization="org",
            project="proj",
            default_headers={"x-trace": "1"},
            extra_body={"store": True},
        )
        sampling = Sampling(reasoning_effort="low", verbosity="high", service_tier="flex")
        answer = await backend.generate(CHAT, sampling)
        assert answer.meta["reasoning_tokens"] == 1 and backend.token_usage.reasoning_tokens == 1
        ((_, headers, body),) = server.requests
        sent = {headers[f"openai-{name}"] for name in ("organization", "project")}
        assert sent == {"org", "proj"} and headers["x-trace"] == "1"
        assert {"low", "high", "flex", True} <= {
            v for v in body.values() if not isinstance(v, list)
        }
        await backend.generate(CHAT, Sampling(extra_body={"store": False}))
        assert server.bodies[1].keys() == {"model", "messages", "max_tokens", "store"}
        assert server.bodies[1]["store"] is False
        await backend.aclose()


async def test_a_deployment_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY", "OPENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    with serving(OpenAIFormat()) as server:
        for version, path in (
            ("2024-10-21", "/openai/deployments/mine/chat/completions?api-version=2024-10-21"),
            (None, "/openai/v1/chat/completions"),
        ):
            backend = sgl.OpenAI(
                "gpt-4o",
                is_azure=True,
                api_key=KEY,
                azure_endpoint=server.url + "/",
                azure_deployment="mine",
                api_version=version,
            )
            assert (await backend.generate(CHAT, PLAIN)).text == "yes"
            assert server.requests[-1].path == path
            assert server.requests[-1].headers["api-key"] == KEY
            assert "authorization" not in server.requests[-1].headers
            assert "max_completion_tokens" in server.bodies[-1]
            await backend.aclose()
        for given, word in (
            ({"api_key": KEY}, "AZURE_OPENAI_ENDPOINT"),
            ({"azure_endpoint": server.url}, "AZURE_OPENAI_API_KEY"),
            ({"api_key": KEY, "azure_endpoint": "here"}, "expected http"),
        ):
            with pytest.raises(ConfigError, match=word):
                sgl.OpenAI("gpt-4o", is_azure=True, **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="need is_azure"):
        sgl.OpenAI("gpt-4o", base_url="http://x", azure_endpoint="http://x")


def test_models_that_reason_lack_parameters_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with serving(OpenAIFormat()) as server:
        options: dict[str, Any] = {"is_azure": True, "azure_endpoint": server.url, "api_key": KEY}

        @sgl.function
        def cold(s: Any) -> None:
            s += sgl.user("Yes?")
            s += sgl.assistant(sgl.gen("x", temperature=0.5, stop="o, "))

        backend = sgl.OpenAI("gpt-5.2", **options)
        error = original(cold.run(backend=backend).error())
        assert isinstance(error, UnsupportedError) and error.param == "temperature"
        assert "test_requests.py:" in str(error) and not server.requests
        backend.close()
        server.answers = [Said("hello, you")]
        backend = sgl.OpenAI("gpt-5.2", also={"temperature"}, **options)
        assert cold.run(backend=backend)["x"] == "hell"  # it has no stops: found here
        assert server.bodies[0]["temperature"] == 0.5 and "stop" not in server.bodies[0]
        backend.close()


# ---- logs and processes --------------------------------------------------------------------------


@pytest.mark.parametrize("provider", [ANTHROPIC, GEMINI])
def test_a_killed_run_goes_on_from_its_log(provider: Any, tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    with serving(provider.form(), Said("one"), Said("two")) as server:
        backend = provider.at(server.url)
        first = branches.run(backend=backend, log=log)
        first.sync()
        assert len(server.requests) == 3
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # as a crash leaves it
        again = branches.run(backend=backend, log=log)
        again.sync()
        assert len(server.requests) == 4
        assert again["thought"] == first["thought"] == "one"
        backend.close()


@pytest.mark.parametrize("provider", [ANTHROPIC, GEMINI])
def test_a_forked_process_has_connections_of_its_own(provider: Any) -> None:
    with serving(provider.form(), Said("hm")) as server:
        backend = provider.at(server.url)
        assert branches.run(backend=backend)["thought"] == "hm"
        pid = os.fork()
        if pid == 0:  # pragma: no cover
            code = 1
            try:
                code = 0 if branches.run(backend=backend)["thought"] == "hm" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert branches.run(backend=backend)["thought"] == "hm"
        backend.close()


# ---- the official clients ------------------------------------------------------------------------


async def test_anthropics_own_client_accepts_the_server() -> None:
    anthropic = pytest.importorskip("anthropic")
    question = [{"role": "user", "content": "Hello?"}]
    asked: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": question}
    with serving(AnthropicFormat(), Said("Hello there.", thoughts="Hm.")) as server:
        async with anthropic.AsyncAnthropic(
            api_key=KEY, base_url=server.url, max_retries=0, _strict_response_validation=True
        ) as client:
            message = await client.messages.create(**asked)
            assert [block.type for block in message.content] == ["thinking", "text", "text"]
            async with client.messages.stream(**asked) as stream:
                assert await stream.get_final_text() == "Hello there."
            for status, kind in ((429, "RateLimitError"), (529, "OverloadedError")):
                server.answers = [Fault(status)]
                with pytest.raises(getattr(anthropic, kind, anthropic.InternalServerError)):
                    await client.messages.create(**asked)
            error = AnthropicFormat().error(529, "Overloaded")
            server.answers = [Said("Hello", error_after=2, error=error)]
            with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
                async with client.messages.stream(**asked) as stream:
                    await stream.get_final_text()


async def test_googles_own_client_accepts_the_server() -> None:
    genai = pytest.importorskip("google.genai")
    options = {"base_url": None, "retry_options": {"attempts": 1}}
    asked = {"model": "gemini-2.5-flash", "contents": "Hello?"}
    with serving(GeminiFormat(), Said("Hello there.")) as server:
        client = genai.Client(api_key=KEY, http_options=options | {"base_url": server.url})
        answer = await client.aio.models.generate_content(**asked)
        assert answer.text == "Hello there."
        chunks = [c async for c in await client.aio.models.generate_content_stream(**asked)]
        assert "".join(chunk.text or "" for chunk in chunks) == "Hello there."
        server.answers = [Fault(503)]
        with pytest.raises(genai.errors.ServerError):
            await client.aio.models.generate_content(**asked)
        await client.aio.aclose()
        client.close()


async def test_openais_own_client_accepts_the_server() -> None:
    openai = pytest.importorskip("openai")
    question = [{"role": "user", "content": "Hello?"}]
    with serving(OpenAIFormat(), Said("Hello there.")) as server:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=server.url, max_retries=0) as client:
            asked = {"model": "m", "messages": question}
            answer = await client.chat.completions.create(**asked)
            assert answer.choices[0].message.content == "Hello there."
            stream = await client.chat.completions.create(**asked, stream=True)
            texts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            assert "".join(texts) == "Hello there."
            server.answers = [Fault(429)]
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(**asked)


def test_bodies_are_json() -> None:
    """What the servers are given is what they keep."""
    with serving(OpenAIFormat()) as server:
        backend = OPENAI.at(server.url)
        branches.run("ice", backend=backend).sync()
        assert all(json.loads(json.dumps(body)) == body for body in server.bodies)
        assert "ice" in json.dumps(server.bodies[0])
        backend.close()


async def test_models_without_schemas_refuse_constraints_and_choose_the_closest() -> None:
    with serving(AnthropicFormat(), Said("It is Blue.")) as server:
        backend = ANTHROPIC.at(server.url, model="claude-3-haiku")
        assert not backend.capabilities.constraints
        chosen = await backend.select(CHAT, ["red", "it is blue"], Sampling(temperature=0.0))
        assert (chosen.text, chosen.meta["select_method"]) == ("it is blue", "closest")
        assert server.bodies[0].keys() == {"model", "max_tokens", "messages", "system"}

        @sgl.function
        def typed(s: Any) -> None:
            s += sgl.user("How many?")
            s += sgl.assistant(sgl.gen("x", type=int))

        error = original(typed.run(backend=backend).error())
        assert isinstance(error, UnsupportedError) and error.param == "type"
        assert len(server.requests) == 1
        await backend.aclose()


# ---- selects, keys and other hosts ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "model"), [(ANTHROPIC, "claude-opus-5"), (GEMINI, "gemini-2.5-flash")]
)
async def test_a_select_leaves_room_for_thoughts_and_keeps_the_runs_efforts(
    provider: Provider, model: str
) -> None:
    with serving(provider.form(), Said('{"choice": "red"}')) as server:
        backend = provider.at(server.url, model=model)
        sampling = Sampling(temperature=0.0, reasoning_effort="low")
        found = await backend.select(CHAT, ["red", "blue"], sampling)
        assert found.text == "red"
        (body,) = server.bodies
        config = body.get("generationConfig", body)
        assert config.get("maxOutputTokens", body.get("max_tokens")) > 2000
        assert '"low"' in json.dumps(body).lower()
        await backend.aclose()
        less = provider.at(server.url, model=model, without={"reasoning_effort"})
        await less.select(CHAT, ["red", "blue"], sampling)
        config = server.bodies[1].get("generationConfig", server.bodies[1])
        assert config.get("maxOutputTokens", config.get("max_tokens")) < 100
        assert '"low"' not in json.dumps(server.bodies[1]).lower()
        await less.aclose()


async def test_selects_of_openai_by_host() -> None:
    with serving(OpenAIFormat(), Said('{"choice": "red"}')) as server:
        # Others may take no schema, and write up to the limit.
        for dialect, limits in (("openai", range(2000, 4096)), (None, range(100))):
            backend = OPENAI.at(server.url, dialect=dialect)
            sampling = Sampling(service_tier="flex", seed=3)
            assert (await backend.select(CHAT, ["red", "blue"], sampling)).text == "red"
            body = server.bodies[-1]
            assert (body.get("max_completion_tokens") or body["max_tokens"]) in limits
            assert (body["service_tier"], body["seed"]) == ("flex", 3)
            await backend.aclose()


async def test_other_hosts_are_sent_schemas_that_strict_modes_refuse() -> None:
    source = json.dumps({"type": "object", "additionalProperties": {"type": "integer"}})
    with serving(_AnySchema(), Said('{"a":1}')) as server:
        backend = OPENAI.at(server.url)
        assert (await backend.generate(CHAT, Sampling(json_schema=source))).text == '{"a":1}'
        assert server.bodies[0]["response_format"]["json_schema"]["schema"] == json.loads(source)
        await backend.aclose()


class _AnySchema(OpenAIFormat):
    """A server that is not OpenAI's."""

    def refusal(self, request: Any) -> str | None:
        return None


@pytest.mark.parametrize("provider", [OPENAI, ANTHROPIC, GEMINI], ids=lambda each: each.name)
async def test_keys_with_blanks_around_them_work(provider: Provider) -> None:
    with serving(provider.form(), Said("yes")) as server:
        make = {"openai": sgl.OpenAI, "anthropic": sgl.Anthropic, "gemini": sgl.Gemini}
        backend = provider.at(server.url)  # skips the test where the package is missing
        await backend.aclose()
        model = backend.model_name
        backend = make[provider.name](model, api_key=f" {KEY}\r\n", base_url=server.url)
        assert (await backend.generate(CHAT, PLAIN)).text == "yes"
        assert any(value.endswith(KEY) for value in server.requests[0].headers.values())
        await backend.aclose()
        for key in ("sk-s\u2026ret", "sk-s\nret"):
            with pytest.raises(ConfigError, match="no HTTP header") as caught:
                make[provider.name](model, api_key=key, base_url=server.url)
            assert "ret" not in str(caught.value)


def test_a_hosts_repr_has_no_key() -> None:
    assert KEY not in repr(openai_host("http://127.0.0.1:9", KEY, None, None, None))
