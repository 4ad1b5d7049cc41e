"""With guessed tokens a request yields, bit for bit, what it yields without them."""

import asyncio
from typing import Any

import httpx2
import msgspec
import pytest

from srt import AsyncClient
from tests.e2e.server import Server

LINES = "".join(f'{{"item": {i}, "name": "box {i % 4}", "full": true}}\n' for i in range(12))
REPEAT = f"The records:\n{LINES}\nThe same records again:\n"
TALE = "The fox said to the bear: come with me. The bear said to the fox: come with me. The fox"
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "full": {"type": "boolean"}},
    "required": ["name", "full"],
    "additionalProperties": False,
}
RECORDS = {"type": "array", "items": RECORD, "minItems": 2, "maxItems": 4}
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<record>", "schema": RECORD, "end": "</record>"}],
    "triggers": ["<record>"],
}
# Which of them repeat themselves depends on the model only.
WISHES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (REPEAT, {}),
    "drawn": (REPEAT, {"temperature": 0.7, "seed": 5, "top_p": 0.95}),
    "hot": (TALE, {"temperature": 1.3, "seed": 6, "top_k": 40}),
    "penalties": (TALE, {"frequency_penalty": 0.4, "repetition_penalty": 1.1}),
    "presence": (REPEAT, {"presence_penalty": 0.5, "temperature": 0.5, "seed": 1}),
    "bad words": (TALE, {"bad_words": ["bear said", " me"]}),
    "stop": (REPEAT, {"stop": ['"item": 3']}),
    "least": (TALE, {"min_new_tokens": 20, "stop": ["bear"]}),
    "regex": (REPEAT, {"regex": r'(\{"item": [0-9], "name": "[a-z]{1,8} [0-9]"\}\n){3}'}),
    "schema": (REPEAT, {"json_schema": RECORDS}),
    "drawn schema": (REPEAT, {"json_schema": RECORDS, "temperature": 1.0, "seed": 3}),
    "without jumps": (REPEAT, {"json_schema": RECORDS, "jump_forward": "off"}),
    "tags": (f"{REPEAT}<record>", {"structural_tag": TAGS}),
    "choices": (TALE, {"choices": [" said to the bear: come", " said to the bear: go"]}),
    "healing": (f'{REPEAT}{{"ite', {"token_healing": True}),
}


# In short.
FEW = ("drawn", "stop", "drawn schema", "healing")


async def answered(client: AsyncClient, name: str, speculative: str) -> dict[str, Any]:
    """All that a request yields but for times and what was cached."""
    prompt, sampling = WISHES[name]
    if isinstance(schema := sampling.get("json_schema"), dict):
        sampling = {**sampling, "json_schema": msgspec.json.encode(schema).decode()}
    if "structural_tag" in sampling:
        sampling = {**sampling, "structural_tag": msgspec.json.encode(TAGS).decode()}
    sampling = {"temperature": 0, "max_new_tokens": 60, **sampling, "speculative": speculative}
    result = await client.generate(prompt, sampling=sampling, return_logprob=True, top_logprobs=2)
    return {
        "text": result.text,
        "ids": result.output_ids,
        "logprobs": result.output_logprobs,
        "top": result.output_top_logprobs,
        "usage": (result.prompt_tokens, result.completion_tokens),
        "finish": result.finish,
    }


@pytest.mark.parametrize("names", [FEW, pytest.param((*WISHES,), marks=pytest.mark.full)], ids=len)
async def test_alone_and_in_a_crowd(guessing: Server, names: tuple[str, ...]) -> None:
    """In a pool that does not hold all of the requests at once."""
    async with AsyncClient(guessing.ring) as client:
        before = (await client.stats())["accepted_draft_tokens_own_total"]
        expected = {name: await answered(client, name, "off") for name in names}
        for name in names:
            assert await answered(client, name, "auto") == expected[name], name
        stats = await client.stats()
        assert stats["accepted_draft_tokens_own_total"] - before > (30 if names == FEW else 100)
        tasks = [answered(client, name, "auto") for name in names for _ in range(2)]
        found = await asyncio.gather(*tasks)
        for number, name in enumerate(name for name in names for _ in range(2)):
            assert found[number] == expected[name], name


async def test_a_predicted_answer_is_the_same(guessing: Server) -> None:
    """The prediction is the answer, or begins and ends like it, or is something else."""
    messages = [{"role": "user", "content": "Tell me about the fox and the bear."}]
    wish: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 32}
    async with httpx2.AsyncClient(base_url=guessing.url, timeout=60) as http:

        async def asked(prediction: Any) -> tuple[str, dict[str, int]]:
            body = {**wish, "prediction": {"type": "content", "content": prediction}}
            answer = (await http.post("/v1/chat/completions", json=body)).json()
            details = answer["usage"].get("completion_tokens_details", {})
            return answer["choices"][0]["message"]["content"], details

        plain = (
            await http.post("/v1/chat/completions", json={**wish, "speculative": "off"})
        ).json()
        text = plain["choices"][0]["message"]["content"]
        same, details = await asked(text)
        assert same == text and details["accepted_prediction_tokens"] > 15
        parts = [{"type": "text", "text": text[:30]}, {"type": "text", "text": f"XYZ{text[34:]}"}]
        for prediction in (parts, "x" * 2000, "", f"<|im_end|>{text}"):
            assert (await asked(prediction))[0] == text
        long = {"type": "content", "content": "x" * 300_000}
        refused = await http.post("/v1/chat/completions", json=wish | {"prediction": long})
        assert refused.json()["error"]["param"] == "prediction"
