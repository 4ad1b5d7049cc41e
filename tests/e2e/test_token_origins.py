"""`token_origins` of the real model: what was sampled, guessed, forced and appended."""

import json
from typing import Any

import httpx2
import pytest

import lang as sgl
from srt import AsyncClient
from srt.wire.programs import Call, Output, Program, Text
from srt.wire.sampling import SamplingParams
from tests.e2e.server import Server

REPEAT = "one two three four five six seven\n" * 6 + "one two"
NAMED = {
    "x-closed": False,
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
WISHES: dict[str, dict[str, Any]] = {
    "repeats": {"text": REPEAT, "max_new_tokens": 40},
    "regex": {"text": "The code: ", "regex": "[a-z]{3}: forced text, and [0-9]{2} more"},
    "scored": {"text": "The code: ", "regex": "[a-z]{3}: forced text", "return_logprob": True},
}


@pytest.mark.parametrize(
    ("name", "is_http"),
    [
        pytest.param(name, is_http, marks=() if (name == "regex") == is_http else pytest.mark.full)
        for name in WISHES
        for is_http in (True, False)
    ],
)
async def test_letters_are_what_the_counters_count(
    guessing: Server, name: str, is_http: bool
) -> None:
    wish = dict(WISHES[name])
    text, return_logprob = wish.pop("text"), wish.pop("return_logprob", False)
    sampling = {"temperature": 0.8, "seed": 4, "token_origins": True} | wish
    if name == "repeats":
        sampling["temperature"] = 0
    async with AsyncClient(guessing.url if is_http else guessing.ring) as client:
        found = await client.generate(text, sampling=sampling, return_logprob=return_logprob)
        last = None
        async for part in client.stream(text, sampling=sampling, return_logprob=return_logprob):
            assert len(part.token_origins) == len(part.output_ids)
            last = part
        silent = sampling | {"token_origins": False}
        plain = await client.generate(text, sampling=silent, return_logprob=return_logprob)
    assert last is not None and plain.output_ids == found.output_ids == last.output_ids
    assert plain.token_origins == ""
    letters = found.token_origins
    assert len(letters) == len(found.output_ids) and set(letters) <= set("sdjc")
    forced = letters.count("j") + letters.count("c")
    assert forced >= found.jump_forward_tokens > 0 or name == "repeats"
    if name == "repeats":
        assert letters.count("d") == found.drafts.accepted > 0
    # What is forced is so whatever was guessed meanwhile.
    assert [letter in "jc" for letter in last.token_origins] == [
        letter in "jc" for letter in letters
    ]


async def test_what_closes_an_output_has_a_letter_of_its_own(guessing: Server) -> None:
    async with AsyncClient(guessing.ring) as client:
        for seed in range(40):
            sampling = {"json_schema": json.dumps(NAMED), "max_new_tokens": 9, "seed": seed}
            found = await client.generate("A name:", sampling=sampling | {"token_origins": True})
            assert found.finish is not None
            assert "c" not in found.token_origins or found.finish.closed
            if "c" in found.token_origins:
                json.loads(found.text)
                return
    raise AssertionError("none of 40 outputs was closed by what was appended")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_chats_and_completions_say_it_too(guessing: Server, path: str) -> None:
    prompt: dict[str, Any] = {"prompt": "Say"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "Say"}]}
    logprobs: dict[str, Any] = {"logprobs": True if "chat" in path else 1}
    body = {"regex": "[a-z]{3}: forced text", "seed": 4, "token_origins": True, "n": 2, **logprobs}
    async with httpx2.AsyncClient(base_url=guessing.url, timeout=60) as http:
        whole = (await http.post(path, json=prompt | body)).json()["choices"]
        streamed = {0: "", 1: ""}
        counts = {0: 0, 1: 0}
        answer = await http.post(path, json=prompt | body | {"stream": True})
        for line in answer.text.split("\n\n"):
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    new = choice.get("token_origins", "")
                    streamed[choice["index"]] += new
                    counts[choice["index"]] += len(new)
                    tokens = choice["logprobs"] or {}
                    rows = tokens.get("content", tokens.get("tokens", []))
                    assert len(rows) == len(new)
        wrong = await http.post(path, json=prompt | {"token_origins": "yes"})
    assert [choice["token_origins"] for choice in whole] == [streamed[0], streamed[1]]
    for choice in whole:
        rows = choice["logprobs"].get("content") or choice["logprobs"]["tokens"]
        assert len(rows) == len(choice["token_origins"]) and "j" in choice["token_origins"]
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "token_origins"


@pytest.mark.parametrize("is_http", [True, False])
async def test_programs_learn_them_with_what_else_is_known(guessing: Server, is_http: bool) -> None:
    sampling = SamplingParams(regex="[a-z]{3}: forced text", token_origins=True)
    program = Program(calls=[Call([Text("The code: "), Output("code", sampling)])])
    async with AsyncClient(guessing.url if is_http else guessing.ring) as client:
        session = await client.session()
        ids = await session.submit(program)
        (got,) = (await session.get_all([ids["code"]])).vars
        await session.close()
    assert got.meta is not None and "j" in got.meta.token_origins
    assert len(got.meta.token_origins) == got.meta.completion_tokens


def test_lang_has_them_in_its_meta_info(guessing: Server) -> None:
    @sgl.function
    def code(s: sgl.ProgramState) -> None:
        s += "The code: " + sgl.gen("code", regex="[a-z]{3}: forced text", token_origins=True)

    with sgl.RuntimeEndpoint(guessing.url) as endpoint:
        meta = code.run(backend=endpoint).get_meta_info("code")
    assert meta is not None and len(meta["token_origins"]) == meta["completion_tokens"]
