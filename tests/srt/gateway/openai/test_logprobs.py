"""Log-probabilities, echo and token ids on the OpenAI routes."""

from collections.abc import Iterable
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.client.generation import GenerateOutput
from srt.files.vocab import Vocab
from srt.gateway.openai.answers import NewTokens
from srt.gateway.openai.logprobs import CompletionScores, Position, TokenNames
from srt.wire.constraint import Constraint
from srt.wire.messages import JUMP_WINDOW_TOKENS, ChatMessage, Finish
from srt.wire.sampling import SamplingParams, Scoring
from tests.fakes import FakeClient
from tests.srt.gateway import setup
from tests.srt.gateway.setup import in_process, sse_payloads

CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
PIECES = ("Hello", ", ", "wörld")


async def post(route: str, body: dict[str, Any], client: FakeClient, **info: Any) -> Any:
    async with in_process(client, **info) as http:
        response = await http.post(route, json=body)
    assert response.status_code == 200, response.text
    return sse_payloads(response.text) if body.get("stream") else response.json()


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


async def test_a_completions_logprobs() -> None:
    """The likeliest tokens by their text, and the chosen one among them."""
    client = FakeClient()
    answer = await post("/v1/completions", {"prompt": "a", "logprobs": 2}, client)
    (request,) = client.requests
    assert request.scoring == Scoring(top=2)
    # The fake's likely tokens are "Hello" with -0.5 and ", " with -1.5.
    top = {"Hello": -0.5, ", ": -1.5}
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["Hello", ", ", "wörld"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [top, top, {**top, "wörld": -0.5}],
        "text_offset": [0, 5, 7],
    }
    none = await post("/v1/completions", {"prompt": "a", "logprobs": 0}, FakeClient())
    assert none["choices"][0]["logprobs"]["top_logprobs"] is None
    assert none["choices"][0]["logprobs"]["token_logprobs"] == [-0.5, -0.5, -0.5]


@pytest.mark.parametrize("body", [{"echo": True}, {}, {"echo": True, "n": 2}])
async def test_a_streams_logprobs_add_up_to_the_whole(body: dict[str, Any]) -> None:
    asked = {"prompt": "a b", "logprobs": 1, **body}
    whole = await post("/v1/completions", asked, FakeClient())
    chunks = await post("/v1/completions", asked | {"stream": True}, FakeClient())
    for choice in whole["choices"]:
        pieces = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert flat(piece["logprobs"][name] for piece in pieces) == values


async def test_echo() -> None:
    """The text begins with the prompt; log-probabilities include those of its tokens. The fake's
    prompt has the tokens 0 and 1."""
    client = FakeClient()
    body = {"prompt": "a b", "echo": True, "max_tokens": 0}
    plain = await post("/v1/completions", body, client)
    assert plain["choices"][0]["text"] == "a b" and client.requests[0].scoring is None
    assert plain["usage"]["completion_tokens"] == 0
    scored = await post("/v1/completions", body | {"logprobs": 1}, client)
    assert client.requests[1].scoring == Scoring(0, 1)
    assert scored["choices"][0]["text"] == "a b"
    assert scored["choices"][0]["logprobs"] == {
        "tokens": ["t0", "t1"],
        "token_logprobs": [None, -0.25],
        "top_logprobs": [None, {"Hello": -0.5, "t1": -0.25}],
        "text_offset": [0, 2],
    }
    ids = await post("/v1/completions", {"prompt": [7, 2, 8], "echo": True}, FakeClient())
    assert ids["choices"][0]["text"] == "t7t8Hello, wörld"
    shown = {"prompt": [7, 2], "echo": True, "skip_special_tokens": False, "logprobs": 0}
    answer = await post("/v1/completions", shown, FakeClient())
    assert answer["choices"][0]["text"] == "t7<end>Hello, wörld"
    assert answer["choices"][0]["logprobs"]["text_offset"][2:] == [7, 12, 14]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("piece", "shown"), [("ö!", "t7ö!"), ("x", "t7\ufffdx")])
async def test_echo_of_ids_that_end_inside_a_character(
    monkeypatch: pytest.MonkeyPatch, stream: bool, piece: str, shown: str
) -> None:
    """The detokenizer gives the whole character if the model has completed it."""
    vocab = setup.fake_vocab(("", piece))
    vocab.token_bytes[8] = b"\xc3"
    monkeypatch.setattr(setup, "fake_vocab", lambda *given: vocab)
    body = {"prompt": [7, 8], "echo": True, "stream": stream}
    answer = await post("/v1/completions", body, FakeClient(pieces=("", piece)))
    answers = answer if stream else [answer]
    assert "".join(each["choices"][0]["text"] for each in answers) == shown


async def test_a_chats_logprobs() -> None:
    client = FakeClient()
    asked = CHAT_BODY | {"logprobs": True, "top_logprobs": 1}
    content = (await post("/v1/chat/completions", asked, client))["choices"][0]["logprobs"]
    best = {"token": "Hello", "bytes": list(b"Hello"), "logprob": -0.5}
    assert content["refusal"] is None
    assert content["content"] == [
        {"token": piece, "bytes": list(piece.encode()), "logprob": -0.5, "top_logprobs": [best]}
        for piece in PIECES
    ]
    chunks = await post("/v1/chat/completions", asked | {"stream": True}, FakeClient())
    choices = [chunk["choices"][0] for chunk in chunks]
    told = [choice["logprobs"]["content"] for choice in choices if choice["logprobs"]]
    assert flat(told) == content["content"]
    assert [choice["delta"].get("content") for choice in choices if choice["logprobs"]] == [*PIECES]


async def test_held_text_does_not_hold_logprobs() -> None:
    """An incomplete call shows no text; its tokens' log-probabilities are still sent, each with its
    own sample."""
    call = ("<tool_call>", '\n{"name": "now", ', '"arguments": {}}', "\n</tool_call>")
    client = FakeClient(call)
    client.sample_pieces = {"r0/1": ("no", " call")}
    tool = {"type": "function", "function": {"name": "now"}}
    asked = CHAT_BODY | {"tools": [tool], "logprobs": True, "n": 2, "stream": True}
    chunks = await post("/v1/chat/completions", asked, client)
    for index, (tokens, reason) in enumerate([(4, "tool_calls"), (2, "stop")]):
        choices = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        told = [len(c["logprobs"]["content"]) for c in choices if c["logprobs"]]
        assert told == [1] * tokens
        assert choices[-1]["finish_reason"] == reason
    calls = [c["choices"][0]["delta"].get("tool_calls") for c in chunks]
    assert [c["choices"][0]["index"] for c, made in zip(chunks, calls, strict=True) if made] == [
        0,
        0,
    ]


async def test_tokens_as_ids() -> None:
    asked = {"prompt": "a", "logprobs": 1, "return_tokens_as_token_ids": True, "max_tokens": 1}
    answer = await post("/v1/completions", asked, FakeClient())
    assert answer["choices"][0]["logprobs"]["tokens"] == ["token_id:100"]
    assert answer["choices"][0]["logprobs"]["top_logprobs"] == [{"token_id:100": -0.5}]


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids(stream: bool) -> None:
    """The ids of the prompts, as the server makes them, and of the answers."""
    asked: dict[str, Any] = {"return_token_ids": True, "stream": stream}
    client = FakeClient()
    answer = await post("/v1/completions", asked | {"prompt": ["ab abc", "a"]}, client)
    chunks = answer if stream else [answer]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index, prompt in enumerate([[1, 2, 3], [1, 1]]):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [choice["prompt_token_ids"] for choice in mine if "prompt_token_ids" in choice] == [
            prompt
        ]
        assert flat(choice["token_ids"] for choice in mine) == [100, 101, 102]
    client = FakeClient()
    answer = await post("/v1/chat/completions", asked | CHAT_BODY, client)
    assert client.tokenized[0].messages == [ChatMessage("user", "hi")]
    chunks = answer if stream else [answer]
    assert [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk] == [[2]]
    ids = [choice.get("token_ids") or [] for chunk in chunks for choice in chunk["choices"]]
    assert flat(ids) == [100, 101, 102]


async def test_a_stream_without_text_yet_tells_the_prompts_ids() -> None:
    """The prompt's ids are sent, although a constrained answer's first piece is empty."""
    asked = {"return_token_ids": True, "stream": True, "prompt": "ab abc", "regex": "a"}
    chunks = await post("/v1/completions", asked, FakeClient(("", "a", "b")))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [c["prompt_token_ids"] for c in choices if "prompt_token_ids" in c] == [[1, 2, 3]]
    assert flat(choice["token_ids"] for choice in choices) == [100, 101, 102]


async def test_prompt_logprobs() -> None:
    client = FakeClient()
    answer = await post("/v1/completions", {"prompt": "a b", "prompt_logprobs": 1}, client)
    expected = [
        None,
        {
            "1": {"logprob": -0.25, "rank": None, "decoded_token": "t1"},
            "100": {"logprob": -0.5, "rank": 1, "decoded_token": "Hello"},
        },
    ]
    assert answer["choices"][0]["prompt_logprobs"] == expected
    assert answer["choices"][0]["logprobs"] is None
    chat = await post("/v1/chat/completions", CHAT_BODY | {"prompt_logprobs": 1}, FakeClient())
    assert chat["prompt_logprobs"] == expected


def snapshot(num_tokens: int, finish: Finish | None = None) -> GenerateOutput:
    return GenerateOutput(
        1, 0, num_tokens, rid="r", output_ids=list(range(num_tokens)), finish=finish
    )


def test_tokens_that_a_jump_may_replace_are_not_told() -> None:
    free = NewTokens(SamplingParams())
    assert [free.take(snapshot(n)) for n in (1, 3)] == [(0, 1), (1, 3)]
    assert SamplingParams(regex="a").constraint == Constraint("regex", "a")
    held = NewTokens(SamplingParams(regex="a"))
    assert held.take(snapshot(JUMP_WINDOW_TOKENS + 2)) == (0, 2)
    assert held.take(snapshot(JUMP_WINDOW_TOKENS - 3)) == (2, 2)
    assert held.take(snapshot(9, Finish("stop"))) == (2, 9)
    off = NewTokens(SamplingParams(regex="a", jump_forward="off"))
    assert off.take(snapshot(5)) == (0, 5)


def scores(
    pieces: list[bytes], special: frozenset[int] = frozenset(), begun: bytes = b""
) -> CompletionScores:
    vocab = Vocab("v", pieces, special, (), None, False, 100, None)
    return CompletionScores(TokenNames(vocab, as_ids=False), 0, special, begun)


@pytest.mark.parametrize(("first", "offsets"), [(b"\x82\xac", [0, 1, 3]), (b"a", [0, 1, 3])])
def test_offsets_after_a_character_that_the_prompt_has_begun(
    first: bytes, offsets: list[int]
) -> None:
    positions = [Position(i, -1.0) for i in range(3)]
    assert scores([first, b"bc", b"d"], begun=b"\xe2").output(positions).text_offset == offsets


@given(st.lists(st.text(max_size=3), max_size=6), st.data())
def test_offsets_are_where_tokens_begin(words: list[str], data: st.DataObject) -> None:
    """However bytes are cut into tokens, and tokens into pieces of the stream."""
    text = "".join(words).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    positions = [Position(i, -1.0) for i in range(len(pieces))]
    seam = data.draw(st.integers(0, len(pieces)))
    writer = scores(pieces)
    parts = [writer.output(positions[:seam]), writer.output(positions[seam:])]
    offsets = parts[0].text_offset + parts[1].text_offset
    for start, offset in zip(cuts, offsets, strict=False):
        assert offset == len(text[:start].decode("utf-8", "ignore"))
    for piece, name in zip(pieces, parts[0].tokens + parts[1].tokens, strict=True):
        whole = piece.decode("utf-8", "replace").encode() == piece
        assert name == piece.decode() if whole else name.startswith("bytes:") and "\\x" in name


@pytest.mark.parametrize(
    ("pieces", "text", "is_given", "offsets"),
    [
        ([b"<s>", b" the", b" hat"], "the hat", True, [0, 0, 3]),  # BOS, and a space added
        ([b"<s>", b"the", b" hat"], "the hat", True, [0, 0, 3]),
        ([b"<s>", b"the"], "<s>the", True, [0, 3]),  # spelled out in the text
        ([b"<s>", b"the"], "the", False, [0, 0]),  # ids: special tokens are not in the text
        ([b"the", b"re"], "xyz", True, [0, 3]),  # changed by a normaliser: not beyond the text
    ],
)
def test_offsets_of_a_prompt(
    pieces: list[bytes], text: str, is_given: bool, offsets: list[int]
) -> None:
    writer = scores([*pieces, b"!"], frozenset({0}) if pieces[0] == b"<s>" else frozenset())
    prompt = writer.prompt([Position(i, None) for i in range(len(pieces))], text, is_given)
    assert prompt.text_offset == offsets
    assert writer.output([Position(len(pieces), -1.0)]).text_offset == [len(text)]
