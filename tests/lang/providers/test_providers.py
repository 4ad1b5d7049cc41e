"""All providers: answers, faults, refusals, schemas and what is missing."""

import inspect
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

import lang as sgl
from lang.backends.sampling import Sampling
from lang.errors import FilterError, RefusalError, UnsupportedError, original
from srt.wire.errors import ConfigError, RequestError
from tests.lang.providers.scripted import Fault, Said, Scripted, event, serving
from tests.lang.providers.setup import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    KEY,
    LITELLM,
    OPENAI,
    PLAIN,
    PROVIDERS,
    QUIET,
    Provider,
    fault,
)

pytestmark = QUIET


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("openai_http", "providers.gemini", "providers.litellm"):
        monkeypatch.setattr(f"lang.backends.{module}.FIRST_PAUSE_S", 0.001)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_answers_whole_and_in_parts(provider: Provider) -> None:
    with serving(provider.form(), Said("Hello there.")) as server:
        backend = provider.at(server.url)
        answer = await backend.generate(CHAT, Sampling(max_tokens=9, stop=("\n\nUSER",)))
        assert (answer.text, answer.finish, answer.cached_tokens) == ("Hello there.", "stop", 3)
        assert answer.prompt_tokens >= 5 and answer.completion_tokens >= 2
        assert backend.token_usage.cached_tokens == 3
        parts = [part async for part in backend.stream(CHAT, PLAIN)]
        assert len(parts) > 3 and parts[-1].finish == "stop"
        texts = [part.text for part in parts]
        assert texts[-1] == "Hello there."
        assert all(longer.startswith(text) for text, longer in pairwise(texts))
        first = json.dumps(server.bodies[0])
        assert "Be brief." in first and "Say hello." in first and "USER" in first
        assert not {"temperature", "top_p", "seed", "n"} & server.bodies[1].keys()
        await backend.aclose()


@pytest.mark.parametrize("status", [429, 500, 529])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_faults_before_an_answer_are_tried_again(provider: Provider, status: int) -> None:
    with serving(provider.form(), fault(status), fault(status), Said("yes")) as server:
        backend = provider.at(server.url)
        assert (await backend.generate(CHAT, PLAIN)).text == "yes"
        assert len(server.requests) == 3
        server.answers = [fault(status), Said("yes")]
        assert [part async for part in backend.stream(CHAT, PLAIN)][-1].text == "yes"
        assert len(server.requests) == 5
        await backend.aclose()
        backend = provider.at(server.url, max_retries=0)
        server.answers = [fault(status)]
        with pytest.raises(RequestError) as caught:
            await backend.generate(CHAT, PLAIN)
        code = "internal" if status == 500 else "overloaded"
        assert (caught.value.info.code, caught.value.info.retryable) == (code, True)
        assert len(server.requests) == 6
        await backend.aclose()


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_streams_that_break(provider: Provider) -> None:
    error = provider.form().error(529, "Overloaded")
    cut, failed = Said("Hello there.", cut_after=2), Said("Hello", error_after=2, error=error)
    with serving(provider.form(), cut) as server:
        backend = provider.at(server.url)
        # litellm takes the end of a connection for that of an answer.
        for said in (cut, failed)[provider is LITELLM :]:
            server.answers, count = [said], len(server.requests)
            with pytest.raises(RequestError) as caught:
                [part async for part in backend.stream(CHAT, PLAIN)]
            assert caught.value.info.code in ("unavailable", "overloaded", "internal")
            assert len(server.requests) == count + 1  # what has begun is not sent again
        await backend.aclose()


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_answers_of_another_form(provider: Provider) -> None:
    with serving(provider.form(), Fault(200, b"<html>no</html>")) as server:
        backend = provider.at(server.url, max_retries=0)
        for body in (b"<html>no</html>", b'{"some": "thing"}', b'{"candidates": 3}', b""):
            server.answers = [Fault(200, body)]
            with pytest.raises(RequestError):
                await backend.generate(CHAT, PLAIN)
        server.answers = [Said("")]  # an empty answer is one
        assert (await backend.generate(CHAT, PLAIN)).text == ""
        await backend.aclose()


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_keys_are_in_no_message(provider: Provider) -> None:
    refused = provider.form().error(401, f"Incorrect API key provided: {KEY}.")
    with serving(provider.form(), Fault(401, refused)) as server:
        backend = provider.at(server.url)
        with pytest.raises(RequestError, match="Incorrect API key") as caught:
            await backend.generate(CHAT, PLAIN)
        assert caught.value.info.code == "unauthorized" and len(server.requests) == 1
        shown = ""
        seen: BaseException | None = caught.value
        while seen is not None:
            shown, seen = shown + str(seen), None if seen.__suppress_context__ else seen.__context__
        assert KEY not in shown and KEY not in repr(vars(caught.value))
        await backend.aclose()


REFUSED = [
    (OPENAI, Said("", extra={"refusal": "I cannot."}), RefusalError, "I cannot."),
    (OPENAI, Said("So", finish="content_filter"), FilterError, "content_filter"),
    (ANTHROPIC, Said("I cannot.", finish="refusal"), RefusalError, "I cannot."),
    (
        ANTHROPIC,
        Said(
            "So",
            finish="refusal",
            extra={"stop_details": {"type": "refusal", "category": "bio", "explanation": "no"}},
        ),
        FilterError,
        "bio",
    ),
    (GEMINI, Said("So", finish="SAFETY"), FilterError, "SAFETY"),
    (GEMINI, Said("", finish="A_NEW_FILTER"), FilterError, "A_NEW_FILTER"),
    (GEMINI, Said("", finish="RECITATION"), FilterError, "RECITATION"),
    (
        GEMINI,
        Said("", extra={"candidates": None, "promptFeedback": {"blockReason": "JAILBREAK"}}),
        FilterError,
        "JAILBREAK",
    ),
]


@pytest.mark.parametrize(("provider", "said", "kind", "word"), REFUSED)
@pytest.mark.filterwarnings("ignore:.*is not a valid:UserWarning")
async def test_refusals_and_filters(
    provider: Provider, said: Said, kind: type[Exception], word: str
) -> None:
    with serving(provider.form(), said) as server:
        backend = provider.at(server.url)
        with pytest.raises(kind, match=word):
            await backend.generate(CHAT, PLAIN)
        with pytest.raises(kind, match=word):
            [part async for part in backend.stream(CHAT, PLAIN)]
        await backend.aclose()


async def test_a_filter_that_refuses_the_prompt() -> None:
    body = {"error": {"message": "filtered", "code": "content_filter"}}
    with serving(OPENAI.form(), Fault(400, body)) as server:
        backend = OPENAI.at(server.url)
        with pytest.raises(FilterError, match="filtered") as caught:
            await backend.generate(CHAT, PLAIN)
        assert caught.value.reason == "content_filter"
        await backend.aclose()


async def test_contents_that_are_lists_of_parts() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    parts = [thinking, {"type": "text", "text": "Pa"}, {"type": "text", "text": "ris"}]
    with serving(OPENAI.form(), Said(extra={"content": parts})) as server:
        backend = OPENAI.at(server.url)
        answer = await backend.generate(CHAT, PLAIN)
        assert (answer.text, answer.meta["reasoning_content"]) == ("Paris", "Hm.")
        server.answers = [Said(extra={"content": [{"type": "refusal", "refusal": "I cannot."}]})]
        with pytest.raises(RefusalError, match="I cannot"):
            await backend.generate(CHAT, PLAIN)
        await backend.aclose()


# ---- constraints ---------------------------------------------------------------------------------


class Person(Struct):
    name: str
    age: Annotated[int, Meta(ge=0)] = 3
    nick: str | None = None


@sgl.function
def typed(s: Any, **given: Any) -> None:
    s += sgl.user("Who?")
    s += sgl.assistant(sgl.gen("x", **given))


TYPED: list[tuple[dict[str, Any], Any, Any]] = [
    ({"type": int}, "42", 42),
    ({"type": Annotated[int, Meta(ge=1, le=5)]}, "4", 4),
    ({"type": list[int]}, [1, 2], [1, 2]),
    ({"type": int | None}, None, None),
    ({"type": Person | list[str]}, ["a"], ["a"]),
    ({"type": list[Person]}, [{"name": "A", "age": None, "nick": None}], [Person("A")]),
    ({"regex": "(?P<a>[a-z]+)-[0-9]{2}"}, "ab-12", "ab-12"),
    ({"where": lambda x: x.length <= 5}, "four", "four"),
]


@pytest.mark.parametrize(("given", "written", "value"), TYPED)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_constraints_reach_every_provider(
    provider: Provider, given: dict[str, Any], written: Any, value: Any
) -> None:
    """The servers refuse what the providers' strict modes refuse."""
    with serving(provider.form(), Said(json.dumps({"value": written}))) as server:
        backend = provider.at(server.url)
        state = typed.run(**given, backend=backend)
        assert state.error() is None, server.bodies
        assert state["x"] == value
        backend.close()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_object_is_not_wrapped(provider: Provider) -> None:
    said = Said('{"name": "A", "age": null, "nick": "B"}')
    with serving(provider.form(), said) as server:
        backend = provider.at(server.url)
        assert typed.run(type=Person, backend=backend)["x"] == Person("A", 3, "B")
        state = typed.run(choices=["red", "blue"], backend=backend)
        assert isinstance(original(state.error()), UnsupportedError)
        server.answers = [Said('{"choice": "blue"}')]
        state = typed.run(choices=["red", "blue"], backend=backend)
        assert (state["x"], state.get_meta_info("x")["select_method"]) == ("blue", "constrained")
        backend.close()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_answers_that_break_a_constraint_are_errors(provider: Provider) -> None:
    with serving(provider.form(), Said('{"value": "none"}')) as server:
        backend = provider.at(server.url)
        for given in ({"type": int}, {"regex": "[0-9]+"}, {"type": list[int]}):
            assert isinstance(
                original(typed.run(**given, backend=backend).error()), sgl.AnswerError
            )
        server.answers = [Said("none at all")]  # a server that ignores the schema
        assert isinstance(original(typed.run(type=int, backend=backend).error()), sgl.AnswerError)
        backend.close()


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_agent(provider: Provider) -> None:
    call = {"tool": "add", "arguments": {"a": 2, "b": None}}
    answers = [Said(json.dumps({"value": call})), Said(json.dumps({"value": {"answer": 3}}))]
    with serving(provider.form(), *answers) as server:
        backend = provider.at(server.url)

        @sgl.function
        def ask(s: Any) -> None:
            s += sgl.user("How much?")
            s += sgl.assistant(sgl.agent("sum", [add], type=int))

        state = ask.run(backend=backend)
        assert state["sum"] == 3, server.bodies
        (made,) = state.get_meta_info("sum")["calls"]
        assert (made["arguments"], made["result"]) == ({"a": 2}, 3)
        again = json.dumps(server.bodies[1])
        assert ("add" in again and "tool" in again.lower()) or "function" in again
        backend.close()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_has_no_form_is_refused_by_name_and_line(provider: Provider) -> None:
    with serving(provider.form()) as server:
        # A server that is not OpenAI's may take other schemas.
        backend = provider.at(server.url, **{"dialect": "openai"} if provider is OPENAI else {})
        given: list[tuple[dict[str, Any], str, str]] = [
            ({"type": dict[str, int]}, "type", "no fixed names"),
            ({"type": tuple[int, str]}, "type", "no one schema"),
            ({"ebnf": 'root ::= "a"'}, "ebnf", ""),
            ({"regex": r"\bword\b"}, "regex", "at character 0"),
            ({"min_p": 0.5}, "min_p", ""),
        ]
        for arguments, param, words in given:
            error = original(typed.run(**arguments, backend=backend).error())
            assert isinstance(error, UnsupportedError) and error.param == param, error
            assert words in str(error)
            line = inspect.getsourcelines(typed.func)[1] + 3
            assert f"test_providers.py:{line})" in str(error)
        assert not server.requests
        backend.close()


# ---- stops and open turns ------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_stops_that_a_model_lacks_are_found_here(provider: Provider) -> None:
    with serving(provider.form(), Said("one, two; three")) as server:
        backend = provider.at(server.url, without={"stop"})
        answer = await backend.generate(CHAT, Sampling(stop=("; t", ", ")))
        assert (answer.text, answer.finish, answer.matched) == ("one", "stop", ", ")
        parts = [part.text async for part in backend.stream(CHAT, Sampling(stop=("two", ", ")))]
        assert parts[-1] == "one" and all("one".startswith(part) for part in parts)
        assert not any("stop" in json.dumps([*body]).lower() for body in server.bodies)
        await backend.aclose()


async def test_an_open_turn_is_continued_where_the_model_can() -> None:
    begun = msgspec.structs.replace(CHAT, open_text="In short, \n", text=CHAT.text + "In short, \n")
    with serving(ANTHROPIC.form(), Said(" \nit is.")) as server:
        backend = ANTHROPIC.at(server.url, model="claude-sonnet-4-5")
        assert backend.capabilities.continues
        assert (await backend.generate(begun, PLAIN)).text == "it is."
        assert [p.text async for p in backend.stream(begun, PLAIN)][-1] == "it is."
        last = server.bodies[0]["messages"][-1]
        assert last == {"role": "assistant", "content": "In short,"}
        await backend.aclose()
        newest = ANTHROPIC.at(server.url)
        assert not newest.capabilities.continues
        with pytest.raises(UnsupportedError, match="cannot continue"):
            await newest.generate(begun, PLAIN)
        forced = ANTHROPIC.at(server.url, also={"prefill"})
        with pytest.raises(RequestError, match="does not support assistant message prefill"):
            await forced.generate(begun, PLAIN)
        await newest.aclose()
        await forced.aclose()


@sgl.function(num_api_spec_tokens="auto")
def person(s: Any) -> None:
    s += sgl.user("Who?")
    name, born = (sgl.gen(name, stop="\n", max_tokens=30) for name in ("name", "born"))
    s += sgl.assistant("Name:" + name + "\nBorn:" + born)


@pytest.mark.parametrize(
    ("provider", "options", "said"),
    [
        (ANTHROPIC, {"model": "claude-sonnet-4-5", "api_version": "2023-06-01"}, ""),
        (GEMINI, {"thinking": {"thinking_budget": 0}}, "Name:"),
    ],
)
def test_one_request_writes_both_fields(provider: Provider, options: Any, said: str) -> None:
    """Where the model continues a turn, and where it must write all of it."""
    with serving(
        provider.form(), Said(said + " Ada\nBorn: 1815\nJob: none that is known")
    ) as server:
        backend = provider.at(server.url, **options)
        state = person.run(backend=backend, temperature=0)
        assert state.vars() == {"name": " Ada", "born": " 1815"}
        assert (len(server.requests), state.usage().calls, state.usage().speculated) == (1, 1, 1)
        assert state.usage().prompt_tokens == backend.token_usage.prompt_tokens
        backend.close()


@pytest.mark.parametrize(
    ("provider", "options"),
    [(ANTHROPIC, {"thinking": "adaptive"}), (GEMINI, {}), (LITELLM, {"model": "openai/o3"})],
)
def test_models_that_think_write_nothing_ahead(provider: Provider, options: Any) -> None:
    with serving(provider.form()) as server:
        backend = provider.at(server.url, **options)
        with pytest.raises(UnsupportedError, match=r"num_api_spec_tokens: .* before it answers"):
            person.run(backend=backend)
        assert not server.requests
        backend.close()


# ---- what is missing -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [
        (lambda: sgl.Anthropic("claude-opus-5", api_key="k"), "anthropic", "anthropic"),
        (lambda: sgl.Gemini("gemini-2.5-flash", api_key="k"), "google.genai", "gemini"),
        (lambda: sgl.VertexAI("gemini-2.5-flash", project="p"), "google.genai", "gemini"),
        (lambda: sgl.LiteLLM("openai/gpt-4o", api_key="k"), "litellm", "litellm"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    make: Any, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'srt-lang\[{extra}\]'"):
        make()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_missing_keys_are_named(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC", "GEMINI", "GOOGLE", "OPENAI"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    provider.at("http://127.0.0.1:9")  # skips the test where the package is missing
    make: dict[str, tuple[Any, str]] = {
        "anthropic": (lambda: sgl.Anthropic("claude-opus-5"), "ANTHROPIC_API_KEY"),
        "gemini": (lambda: sgl.Gemini("gemini-2.5-pro"), "GEMINI_API_KEY or GOOGLE_API_KEY"),
        "vertex": (lambda: sgl.VertexAI("gemini-2.5-pro"), "GOOGLE_CLOUD_PROJECT"),
        "openai": (lambda: sgl.OpenAI("gpt-4o"), "OPENAI_API_KEY"),
        "litellm": (lambda: sgl.LiteLLM("openai/gpt-4o"), "OPENAI_API_KEY"),
    }
    build, variable = make[provider.name]
    with pytest.raises(ConfigError, match=variable):
        build()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_unknown_features_are_refused(provider: Provider) -> None:
    with pytest.raises(ConfigError, match="no feature 'stopp'"):
        provider.at("http://127.0.0.1:9", without={"stopp"})
    with pytest.raises(ConfigError, match="set of names"):
        provider.at("http://127.0.0.1:9", also="stop")


@pytest.fixture
def dead_url() -> Iterator[str]:
    with serving(OPENAI.form()) as server:
        url = server.url
    yield url


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_server_that_is_not_there(provider: Provider, dead_url: str) -> None:
    backend = provider.at(dead_url, max_retries=0)
    with pytest.raises(RequestError) as caught:
        await backend.generate(CHAT, PLAIN)
    assert caught.value.info.retryable
    await backend.aclose()


async def test_a_stream_with_events_that_are_no_json() -> None:
    class Broken(type(OPENAI.form())):  # type: ignore[misc]
        def error_event(self, error: Any) -> bytes:
            return b"data: {nonsense\n\n"

    with serving(Broken(), Said("Hello", error_after=2)) as server:
        backend = OPENAI.at(server.url)
        with pytest.raises(RequestError, match="not JSON"):
            [part async for part in backend.stream(CHAT, PLAIN)]
        await backend.aclose()


def test_servers_answer_several_requests_at_once() -> None:
    kinds = Literal["a", "b"]
    with serving(OPENAI.form(), Said('{"choice": "a"}')) as server:
        backend = OPENAI.at(server.url)
        states = typed.run_batch([{"type": kinds}] * 20, backend=backend, num_threads=8)
        assert [state["x"] for state in states] == ["a"] * 20
        assert len(server.requests) == 20
        backend.close()


def test_events_are_written_as_the_standard_has_them() -> None:
    assert event({"a": 1}, "ping") == b'event: ping\ndata: {"a": 1}\n\n'
    assert Scripted(OPENAI.form(), [Said("x")]).bodies == []
