"""API speculation: programs with it have the texts that they have without, in fewer calls."""

import asyncio
import functools
import gc
import json
import operator
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lang as sgl
from lang.backends.base import Completion, Prompt
from lang.backends.sampling import Sampling
from lang.backends.speculating import (
    MAX_CHARS,
    MAX_SITES,
    Entry,
    Site,
    Speculation,
    Store,
    Written,
    draw_of,
    key_of,
)
from tests.lang.backends.scripted import ScriptedServer, lines_of_labels, script
from tests.lang.fakes import FakeBackend
from tests.running.profiles import examples

BOOK = "Book. Title: Dune\nAuthor: Frank Herbert\nYear: 1965\nMore: things that nobody asked for\n"
FIELDS = {"title": " Dune", "author": " Frank Herbert", "year": " 1965"}


def at_once(s: Any) -> None:
    title, author, year = (sgl.gen(name, stop="\n") for name in FIELDS)
    s += "Book. Title:" + title + "\nAuthor:" + author + "\nYear:" + year


def extract(s: Any, start: str = "Book. Title:") -> None:
    """The same, in several steps: a run may begin to ask before it has all of them."""
    s += start
    s += sgl.gen("title", stop="\n")
    s += "\nAuthor:"
    s += sgl.gen("author", stop="\n")
    s += "\nYear:"
    s += sgl.gen("year", stop="\n")


async def on_the_loop(s: Any, start: str = "Book. Title:") -> None:
    """The same on the language's own loop, which asks nothing before this has ended."""
    extract(s, start)


@pytest.fixture
def book() -> Any:
    """A function that has learned nothing yet."""
    return sgl.function(at_once, num_api_spec_tokens="auto")


@pytest.fixture
def stepwise() -> Any:
    return sgl.function(on_the_loop, num_api_spec_tokens=64)


def greedy(server: ScriptedServer, f: Any, *args: Any, **options: Any) -> sgl.ProgramState:
    state: sgl.ProgramState = f.run(*args, backend=server.backend(), temperature=0, **options)
    assert state.error() is None
    return state


# ---- three fields --------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [at_once, extract, on_the_loop])
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("tokens", ["auto", 64, 1000])
def test_three_fields_are_one_call(body: Any, is_compiled: bool, tokens: Any) -> None:
    f: Any = sgl.function(body, num_api_spec_tokens=7)
    f = f.compile() if is_compiled else f
    server, plain = ScriptedServer(script(BOOK)), ScriptedServer(script(BOOK))
    state = greedy(server, f, num_api_spec_tokens=tokens)
    without = greedy(plain, f, num_api_spec_tokens=0)
    assert state.text() == without.text() and state.vars() == without.vars() == FIELDS
    assert len(plain.bodies) == 3
    if body is extract and not is_compiled:
        return  # by chance, the second field may be asked for before the third is there
    assert len(server.bodies) == 1
    assert "stop" not in server.bodies[0] and server.left == 1  # after the last field's stop
    usage, before = state.usage(), without.usage()
    assert (usage.calls, usage.speculated, usage.uncounted) == (1, 2, 0)
    assert (before.calls, before.speculated, before.saved_tokens) == (3, 0, 0)
    assert usage.prompt_tokens + 40 < before.prompt_tokens
    assert usage.completion_tokens == server.sent
    assert usage.wasted_tokens <= 2  # the last stop


def test_the_trace_tells_what_was_speculated(book: Any) -> None:
    state = greedy(ScriptedServer(script(BOOK)), book)
    title, author, year = state.trace()
    assert (title.num_requests, title.is_speculated, title.tokens_ahead > 10) == (1, False, True)
    for call in (author, year):
        assert call.is_speculated and call.num_requests == 0 and call.finish == "stop"
        assert call.prompt_tokens == call.completion_tokens == 0 < call.tokens_saved
    assert json.loads(state.trace().to_json())[1]["is_speculated"] is True
    assert (state.get_meta_info("author") or {})["speculated"] is True


def test_an_answer_is_left_where_it_contradicts(book: Any) -> None:
    other = BOOK.replace("Author", "Writer")
    server = ScriptedServer(script(other))
    state = greedy(server, book)
    assert server.left == 1 and server.sent < 20
    assert state["author"] == state["year"] == "" and state["title"] == " Dune"
    assert state.usage().speculated == 0 < state.usage().wasted_tokens


def test_what_is_not_followed_by_a_gen_is_asked_plainly() -> None:
    @sgl.function(num_api_spec_tokens="auto")
    def last(s: Any) -> None:
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("a", stop="\n")) + "\nAuthor:"
        s += sgl.gen("b", stop="\n", temperature=0.5) + " and " + sgl.gen("c", stop="\n")

    server = ScriptedServer(lines_of_labels)
    greedy(server, last)
    assert all(body["stop"] and "stream" not in body for body in server.bodies)
    assert len(server.bodies) == 3


def test_a_site_that_does_not_help_is_tried_twice() -> None:
    @sgl.function(num_api_spec_tokens=8)
    def decides(s: Any, start: str) -> None:
        s += start + sgl.gen("a", stop="\n")
        s += "\nNothing of the kind" if s["a"] else ""  # not known while the model writes
        s += sgl.gen("b", stop="\n")

    server = ScriptedServer(script(BOOK))
    for start in ("Book. Title:", "Book. Title: ", "Book. Title: D", "Book. Title: Du"):
        greedy(server, decides, start)
    tried = [bool(body.get("stream")) for body in server.bodies]
    assert tried == [True, False, True, False, False, False, False, False]

    helped = ScriptedServer(script(BOOK))

    @sgl.function(num_api_spec_tokens=64)
    def reads(s: Any) -> None:
        s += "Book. Title:" + sgl.gen("a", stop="\n")
        s += "\nAuthor:" if s["a"] else "\nYear:"
        s += sgl.gen("b", stop="\n")

    for _ in range(4):
        assert greedy(helped, reads)["b"] == FIELDS["author"]
    assert len(helped.bodies) == 4


# ---- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["sglang", "vllm", "openai"])
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 13, 40])
def test_limits_of_tokens_hold(book: Any, dialect: str, limit: int) -> None:
    states = []
    for tokens in ("auto", 0):
        backend = ScriptedServer(script(BOOK)).backend(dialect=dialect)
        options: dict[str, Any] = {"max_new_tokens": limit, "temperature": 0}
        states.append(book.run(backend=backend, num_api_spec_tokens=tokens, **options))
    assert states[0].text() == states[1].text()
    for name in FIELDS:
        infos = [state.get_meta_info(name)["finish_reason"]["type"] for state in states]
        assert infos[0] == infos[1]


def test_what_a_server_refuses_is_asked_as_without(book: Any) -> None:
    server = ScriptedServer(script(BOOK), refuses_above=130)
    state = greedy(server, book)
    assert state.vars() == FIELDS and state.usage().calls == len(server.bodies) == 5


def test_parts_of_what_was_written() -> None:
    written = Written("ab\ncd.e", (1, 2, 3, 5, 6, 7), "stop", 6)
    line = Sampling(stop=("\n", "."), max_tokens=3)
    assert written.field(0, line) == ("ab", "stop", "\n", 2)
    assert written.field(3, line) == ("cd", "stop", ".", 5)
    assert written.field(6, line) == ("e", "stop", None, 7)
    assert written.field(0, Sampling(max_tokens=2)) == ("ab", "length", None, 2)
    assert written.field(4, Sampling(max_tokens=2)) is None  # within a token
    assert written.field(4, Sampling(max_tokens=3)) == ("d.e", "stop", None, 7)
    growing = Written("abc")
    assert growing.field(0, line) is None and growing.field(0, Sampling(max_tokens=9)) is None


@pytest.mark.parametrize(
    "given",
    [
        {"frequency_penalty": 0.5},
        {"regex": "a"},
        {"return_logprob": True},
        {"stop": ("abc", "b")},
        {"stop_token_ids": [1]},
        {"min_tokens": 2},
        {"seed": 3, "temperature": 1.0},
    ],
)
def test_what_is_never_speculated(given: dict[str, Any]) -> None:
    assert draw_of(Sampling().merged({"temperature": 0.0} | given)) is None
    assert draw_of(Sampling(temperature=0.0, seed=3)) == draw_of(Sampling(temperature=0.0))


def test_models_that_reason(book: Any) -> None:
    server = ScriptedServer(script(BOOK))
    for name in ("o3-mini", "openai/gpt-5.1"):
        backend = sgl.OpenAI(name, base_url="http://fake/v1")
        with pytest.raises(sgl.UnsupportedError, match=f"num_api_spec_tokens.*{name} reasons"):
            book.run(backend=backend)

    async def reasons(request: httpx2.Request) -> httpx2.Response:
        answer = await server(request)
        if json.loads(request.content).get("stream"):
            data = b"".join([each async for each in answer.aiter_raw()])
            thought = data.replace(b'"delta": {', b'"delta": {"reasoning_content": "x", ')
            answer = httpx2.Response(200, content=thought, headers=answer.headers)
        return answer

    @sgl.function(num_api_spec_tokens=64)
    def chat(s: Any) -> None:
        for _ in range(3):
            s += sgl.user("Q")
            s += sgl.assistant(sgl.gen("a", stop="x") + "x" + sgl.gen("b", stop="\n"))

    backend = sgl.OpenAI(
        "m", base_url="http://fake/v1", dialect="sglang", transport=httpx2.MockTransport(reasons)
    )
    chat.run(backend=backend, temperature=0).sync()
    assert sum(bool(body.get("stream")) for body in server.bodies) == 1


# ---- where it is said ----------------------------------------------------------------------------


def test_bad_numbers_and_back_ends_are_refused(stepwise: Any) -> None:
    for wrong in (-1, True, 1.5, "yes"):
        with pytest.raises(ValueError, match="num_api_spec_tokens"):
            sgl.function(extract, num_api_spec_tokens=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="num_api_spec_tokens"):
            stepwise.run(num_api_spec_tokens=wrong, backend=FakeBackend())
    endpoint = sgl.RuntimeEndpoint("http://127.0.0.1:1")
    for run in (stepwise.run, stepwise.compile().run, lambda **kw: stepwise.run_batch([{}], **kw)):
        with pytest.raises(sgl.UnsupportedError, match=r"num_api_spec_tokens: .* cache"):
            run(backend=endpoint)
    with pytest.raises(sgl.UnsupportedError, match="num_api_spec_tokens"):
        sgl.function(extract, num_api_spec_tokens=8).submit()
    assert stepwise.run(backend=FakeBackend(), num_api_spec_tokens=0)["title"]


def test_bind_nested_runs_and_methods_keep_it(stepwise: Any) -> None:
    @sgl.function
    def outer(s: Any) -> None:
        s += stepwise()["title"] + stepwise(num_api_spec_tokens=0)["title"]

    class Books:
        @sgl.function(num_api_spec_tokens="auto")
        def find(self, s: Any) -> None:
            extract(s)

    @sgl.function
    def number(s: Any, num_api_spec_tokens: int) -> None:
        s += str(num_api_spec_tokens)

    server = ScriptedServer(script(BOOK))
    greedy(server, stepwise.bind(start="Book. Title:"))
    assert len(server.bodies) == 1
    greedy(server, Books().find)
    assert len(server.bodies) == 2
    greedy(server, sgl.function(extract), num_api_spec_tokens=64)
    assert len(server.bodies) == 3
    greedy(server, outer)
    assert len(server.bodies) == 3 + 4
    greedy(server, outer.compile())
    assert len(server.bodies) == 7 + 1  # a compiled program makes equal calls once
    greedy(server, outer, num_api_spec_tokens=64)
    assert len(server.bodies) == 8 + 4
    assert greedy(server, number, 7).text() == "7"


def test_a_run_goes_on_from_its_log(book: Any, tmp_path: Path) -> None:
    first = greedy(ScriptedServer(script(BOOK)), book, log=tmp_path / "run")
    again = greedy(ScriptedServer(script("")), book, log=tmp_path / "run")
    assert again.text() == first.text() and all(call.from_log for call in again.trace())
    assert again.usage() == first.usage()
    lines = (tmp_path / "run").read_bytes().splitlines()
    (tmp_path / "cut").write_bytes(b"\n".join(lines[:-1]) + b"\n")
    server = ScriptedServer(script(BOOK))
    assert greedy(server, book, log=tmp_path / "cut").text() == first.text()
    assert len(server.bodies) == 1


def test_a_stream_shows_a_field_as_soon_as_it_is_known(book: Any) -> None:
    server = ScriptedServer(script(BOOK))
    stream = book.stream(backend=server.backend(), temperature=0)
    pieces = list(stream)
    assert "".join(pieces) == "Book. Title: Dune\nAuthor: Frank Herbert\nYear: 1965"
    assert len(server.bodies) == 1


# ---- who gets what -------------------------------------------------------------------------------


def numbered() -> tuple[Callable[[str], str], list[int]]:
    """A model that draws: every answer has a number of its own in each of its lines."""
    count = [0]
    lock = threading.Lock()

    def model(text: str) -> str:
        if text.endswith(":"):
            with lock:
                count[0] += 1
            return chr(0x4E00 + count[0])
        known = {"\n": "B", "B": ":"}
        return known.get(text[-1:], "\n")

    return model, count


def test_drawn_answers_are_given_out_once() -> None:
    @sgl.function(num_api_spec_tokens=32)
    def forks(s: Any) -> None:
        s += "A:"
        children = s.fork(8)
        children += sgl.gen("a", stop="\n") + "\nB:" + sgl.gen("b", stop="\n")
        children.join()
        with s.copy() as again:
            again += sgl.gen("c", stop="\n") + "\nB:" + sgl.gen("d", stop="\n")

    model, _ = numbered()
    server = ScriptedServer(model)
    state = forks.run(backend=server.backend(), temperature=1.0)
    drawn = [*state["a"], *state["b"], *state["c"], *state["d"]]
    assert len(set(drawn)) == len(drawn) == 18
    assert len(server.bodies) == 9


def test_drawn_answers_have_the_same_distribution() -> None:
    """Of a model that draws each field, and the label between them, by itself."""

    @sgl.function(num_api_spec_tokens="auto")
    def two(s: Any) -> None:
        s += "A:" + sgl.gen("a", stop="\n") + "\nB:" + sgl.gen("b", stop="\n")

    random = Random(7)

    def model(text: str) -> str:
        if text.endswith(("A:", "B:", "C:")):
            return random.choices("xyz", (6, 3, 1))[0]
        if text.endswith("\n"):
            return random.choice("BC")
        return ":" if text[-1:] in "BC" else "\n"

    server = ScriptedServer(model)
    states = two.run_batch([{}] * 600, backend=server.backend(), temperature=1.0, num_threads=1)
    assert 600 + 200 < len(server.bodies) < 600 + 400  # half of the labels are right
    for name in ("a", "b"):
        found = Counter(state[name] for state in states)
        for letter, share in zip("xyz", (0.6, 0.3, 0.1), strict=True):
            spread = (600 * share * (1 - share)) ** 0.5
            assert abs(found[letter] - 600 * share) < 4 * spread
    pairs = Counter((state["a"], state["b"]) for state in states)
    assert abs(pairs["x", "x"] - 216) < 4 * 12


@pytest.mark.parametrize("dialect", ["sglang", "openai"])
@pytest.mark.parametrize("tokens", ["auto", 7, 64])
def test_drawn_answers_are_not_chosen_by_their_lengths(dialect: str, tokens: Any) -> None:
    """Long fields, which a number of tokens or bytes would not hold, are as frequent as without."""

    @sgl.function(num_api_spec_tokens=tokens)
    def two(s: Any) -> None:
        gens = (sgl.gen(name, stop="\n", max_tokens=40) for name in "ab")
        s += "A:" + next(gens) + "\nB:" + next(gens)

    random = Random(7)

    def model(text: str) -> str:
        line = text.rpartition("\n")[2]
        if line in ("A:", "B:"):
            return random.choice("xy")
        if not line:
            return "B"
        if line == "B":
            return ":"
        return "\n" if line[2] == "x" or len(line) == 62 else random.choice("yz")

    server = ScriptedServer(model)
    backend = server.backend(dialect=dialect)
    states = two.run_batch([{}] * 300, backend=backend, temperature=1.0, num_threads=1)
    for name in "ab":
        found = Counter(state[name][0] for state in states)
        assert abs(found["x"] - 150) < 4 * 75**0.5, (name, found)
    assert len(server.bodies) == (300 if dialect == "sglang" else 600)


def test_a_key_holds_its_back_end() -> None:
    """Otherwise another one, made while the run lasts, could get its id, and its answers."""
    backend = FakeBackend()
    alive, key = weakref.ref(backend), key_of(backend, Prompt("x"), ())
    del backend
    gc.collect()
    assert alive() is not None and key != key_of(FakeBackend(), Prompt("x"), ())


def test_what_comes_late_costs_no_answer_that_is_there() -> None:
    server = ScriptedServer(script(BOOK))

    async def stalls(request: httpx2.Request) -> httpx2.Response:
        answer = await server(request)
        if not json.loads(request.content).get("stream"):
            return answer
        events = answer.aiter_raw()

        async def slow() -> Any:
            read = b""
            async for each in events:
                if b"Frank" in b"".join(re.findall(rb'"text": "(.*?)"', read)):
                    await asyncio.sleep(30)
                read += each
                yield each

        return httpx2.Response(200, content=slow(), headers=answer.headers)

    backend = sgl.OpenAI(
        "m", False, base_url="http://fake/v1", dialect="sglang",
        transport=httpx2.MockTransport(stalls),
    )  # fmt: skip
    title = sgl.gen("title", stop="\n", timeout_s=0.5)

    @sgl.function(num_api_spec_tokens="auto")
    def first(s: Any) -> None:
        s += "Book. Title:" + title + "\nAuthor:" + sgl.gen("author", stop="\n")

    state = first.run(backend=backend, temperature=0)
    assert state["title"] == " Dune"


def test_the_store_is_bounded_and_reasoning_is_of_one_back_end() -> None:
    store = Store(Speculation(64))
    for i in range(40):
        written = Written("x" * 1000, finish="length")
        store.add((i,), Entry(str(i) * 300_000, written, 0, (1, 9), Site(), {}, is_tried=True))
    assert sum(entry.num_chars for _, entry in store._entries) <= MAX_CHARS
    thinks, other = FakeBackend(), FakeBackend()
    store.speculation.has_reasoned(thinks)
    again = store.speculation.with_tokens(8)
    assert again.is_off(thinks) and not again.is_off(other)
    for i in range(2 * MAX_SITES):
        again.site(str(i))
    assert len(again._sites) <= MAX_SITES


def test_what_was_written_grows_as_if_read_at_once() -> None:
    tokens: list[list[Any]] = [[-1.0, 0, each] for each in ("\n", "\nA", "da", "\n", "B")]
    before = Written("")
    for blanks in ("", "\n\n"):
        for i in range(6):
            text = "".join(each for _, _, each in tokens[:i])
            answer = Completion(text, meta={"output_token_logprobs": tokens[:i]})
            before = Written.of(answer, blanks, before)
            assert before == Written.of(answer, blanks)


def test_forks_of_one_text_share_what_is_greedy() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def forks(s: Any) -> None:
        s += "Book. Title:" + sgl.gen("title", stop="\n")
        children = s.fork(3 if s["title"] else 0)
        children += ["\nAuthor:", "\nAuthor:", "\nPages:"]
        children += sgl.gen("end", stop="\n")
        children.join()

    server = ScriptedServer(script(BOOK))
    state = greedy(server, forks)
    author = FIELDS["author"]
    assert state["end"] == [author, author, ""] and len(server.bodies) == 2


@sgl.function(num_api_spec_tokens="auto")
def rows(s: Any, start: str) -> None:
    s += start
    for name in ("a", "b", "c"):
        s += sgl.gen(name, stop="\n", max_tokens=9) + "\nB:"
    s += sgl.gen("d", stop=".", max_tokens=3)


@pytest.mark.parametrize("threads", [1, "auto"])
def test_a_batch_of_two_hundred(threads: Any) -> None:
    given = [{"start": f"row {i % 150}\n"} for i in range(200)]
    server, plain = ScriptedServer(lines_of_labels), ScriptedServer(lines_of_labels)
    options: dict[str, Any] = {"temperature": 0, "num_threads": threads}
    states = rows.run_batch(given, backend=server.backend(), **options)
    options["num_api_spec_tokens"] = 0
    without = rows.run_batch(given, backend=plain.backend(), **options)
    assert [state.vars() for state in states] == [state.vars() for state in without]
    assert [state.text() for state in states] == [state.text() for state in without]
    assert sum(state.usage().calls for state in states) == len(server.bodies) < len(plain.bodies)
    assert sum(state.usage().completion_tokens for state in states) == server.sent


def test_threads_on_one_back_end() -> None:
    backend = ScriptedServer(lines_of_labels).backend()
    expected = {i: rows.run(f"{i}\n", backend=backend, temperature=0).text() for i in range(12)}
    found: dict[int, str] = {}

    def work(i: int) -> None:
        found[i] = rows.run(f"{i}\n", backend=backend, temperature=0).text()

    threads = [threading.Thread(target=work, args=(i,)) for i in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


# ---- chats ---------------------------------------------------------------------------------------

ANSWER = "Name: Ada\nBorn: 1815\nJob: mathematician\n"
CHAT = "USER:Who?\nASSISTANT:" + ANSWER


@sgl.function
def person(s: Any) -> None:
    s += sgl.user("Who?")
    s += sgl.assistant(
        "Name:" + sgl.gen("name", stop="\n") + "\nBorn:" + sgl.gen("born", stop="\n")
        + "\nJob:" + sgl.gen("job", stop="\n")
    )  # fmt: skip


PERSON = {"name": " Ada", "born": " 1815", "job": " mathematician"}


@pytest.mark.parametrize(
    ("dialect", "tokens", "calls"),
    [
        ("sglang", 0, 3),
        ("vllm", 0, 3),
        ("sglang", "auto", 1),
        ("openai", "auto", 1),
        ("openai", 200, 1),
    ],
)
def test_open_turns_of_a_chat(dialect: str, tokens: Any, calls: int) -> None:
    server = ScriptedServer(script(CHAT))
    backend = server.backend(is_chat=True, dialect=dialect)
    state = person.run(backend=backend, temperature=0, num_api_spec_tokens=tokens)
    assert state.error() is None and state.vars() == PERSON
    assert len(server.bodies) == state.usage().calls == calls
    if dialect != "openai":
        last = server.bodies[-1]
        assert last["continue_final_message"] is True
        assert last["messages"][-1]["role"] == "assistant"
        assert last.get("add_generation_prompt") is (False if dialect == "vllm" else None)


def test_a_chat_that_continues_nothing_is_never_filled_in() -> None:
    server = ScriptedServer(script(CHAT.replace("Born", "Birth")))
    backend = server.backend(is_chat=True, dialect="openai")
    state = person.run(backend=backend, temperature=0, num_api_spec_tokens=64)
    assert state["name"] == " Ada"
    error = state.error()
    assert isinstance(error, sgl.UnsupportedError)
    assert "asked 1 time" in str(error) and "'Name: Ada\\nBorn:'" in str(error)
    drawn = ScriptedServer(lambda text: "" if text.endswith("no") else "no"[text.endswith("n")])
    backend = drawn.backend(is_chat=True, dialect="openai")
    state = person.run(backend=backend, temperature=1.0, num_api_spec_tokens=64)
    assert "asked 3 times" in str(state.error()) and len(drawn.bodies) == 3
    without = person.run(backend=backend, temperature=0)
    assert "cannot continue" in str(without.error()) and len(drawn.bodies) == 3


def test_a_cut_answer_costs_only_what_was_not_there(book: Any) -> None:
    server = ScriptedServer(script(BOOK))

    async def breaks(request: httpx2.Request) -> httpx2.Response:
        answer = await server(request)
        if json.loads(request.content).get("stream"):
            data = b"".join([each async for each in answer.aiter_raw()])
            answer = httpx2.Response(
                200, content=data[: data.index(b"Fr") if b"Fr" in data else 900]
            )
        return answer

    backend = sgl.OpenAI(
        "m", False, base_url="http://fake/v1", dialect="sglang",
        transport=httpx2.MockTransport(breaks),
    )  # fmt: skip
    state = book.run(backend=backend, temperature=0)
    assert state["title"] == " Dune"


# ---- random programs -----------------------------------------------------------------------------

_names = st.sampled_from("abc")
_stops = st.sampled_from([("\n",), (".",), ("\n", "."), ("z\n",), ()])
_gens = st.tuples(
    st.just("gen"), _names, _stops, st.integers(1, 12), st.sampled_from([None, None, None, 2, 0.5])
)
_steps = st.one_of(
    _gens, _gens,
    st.tuples(st.just("text"), st.sampled_from(["\nA:", "\nB:", "\nC:", "\n", "xy", " "])),
    st.tuples(st.just("read"), _names),
    st.tuples(st.just("select"), _names),
)  # fmt: skip


def _some(steps: Any) -> Any:
    return st.lists(steps, min_size=1, max_size=4)


def _nested(steps: Any) -> Any:
    return st.one_of(
        st.tuples(st.just("fork"), st.lists(_some(steps), min_size=1, max_size=3), st.booleans()),
        st.tuples(st.just("run"), _some(steps)),
        st.tuples(st.just("if"), _names, _some(steps), _some(steps)),
        st.tuples(st.just("together"), _some(steps)),
    )


_programs = st.lists(st.recursive(_steps, _nested, max_leaves=14), min_size=2, max_size=8)


def perform(s: Any, steps: list[Any]) -> None:
    for step in steps:
        _perform(s, step)


program = sgl.function(perform)


def _value(s: Any, name: str) -> str:
    try:
        return str(s[name])
    except KeyError:
        return "nothing"


def _expression(step: Any) -> Any:
    match step:
        case ("text", text):
            return text
        case ("gen", name, stop, limit, 2):
            return sgl.gen(name, limit, n=2, stop=stop)
        case ("gen", name, stop, limit, top_p):
            return sgl.gen(name, limit, stop=stop, top_p=top_p)
    return None


def _perform(s: Any, step: Any) -> None:
    match step:
        case ("text" | "gen", *_):
            s += _expression(step)
        case ("read", name):
            s += _value(s, name)
        case ("select", name):
            s += sgl.select(name, ["xy", "z", "\n"])
        case ("together", body):
            parts = [part for part in map(_expression, body) if part is not None]
            if parts:
                s += functools.reduce(operator.add, parts)
        case ("fork", bodies, gather):
            forks = s.fork(len(bodies))
            for fork, body in zip(forks, bodies, strict=True):
                perform(fork, body)
            forks.join("gather_variable" if gather else "concate_and_append")
        case ("run", body):
            s += f"[{program(body).text()}]"
        case ("if", name, then, otherwise):
            perform(s, then if len(_value(s, name)) % 2 else otherwise)


def _outcome(steps: list[Any], tokens: Any, dialect: str) -> tuple[Any, int]:
    server = ScriptedServer(lines_of_labels)
    backend = server.backend(dialect=dialect, select="closest")
    state = program.run(
        steps, backend=backend, temperature=0, num_api_spec_tokens=tokens, timeout_s=60.0
    )
    values = state.vars()
    reasons = {name: state.get_meta_info(name) for name in values if name in "abc"}
    finishes = {name: info and info["finish_reason"]["type"] for name, info in reasons.items()}
    return (state.text(), values, finishes, state.error()), len(server.bodies)


@settings(max_examples=100 * examples(1) if examples(1) > 1 else 50)
@given(_programs, st.sampled_from(["auto", 4, 40, 200]), st.sampled_from(["sglang", "openai"]))
def test_random_programs_are_the_same_without(steps: list[Any], tokens: Any, dialect: str) -> None:
    with_it, _ = _outcome(steps, tokens, dialect)
    without, _ = _outcome(steps, 0, dialect)
    assert with_it == without
