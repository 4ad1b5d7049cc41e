"""Token healing on the real model, on every API.

A prompt that is cut inside a token has lost the text that the model would have written. Healed, it
gets exactly that text back, token by token.
"""

import json
import re
from typing import Any

import httpx2
import openai
import pytest

from srt import AsyncClient
from srt.files.model_files import resolve_model
from srt.files.tokenizer import Tokenizer, load_tokenizer
from srt.files.vocab import Vocab, load_vocab
from tests.e2e.server import Server

GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 8}
HEALED = GREEDY | {"token_healing": True}
PROMPTS = (
    "You can read more about it on our website: http",
    "The capital of France is",
    "Once upon a time, in a small",
    "import numpy as np\nimport",
    "The opposite of hot is cold. The opposite of small is",
    "To be or not to be, that is the",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2"))


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    return load_vocab(resolve_model("smollm2"))


@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.full)])
async def test_a_prompt_cut_inside_a_token_goes_on_as_if_it_were_not(
    server: Server, tokenizer: Tokenizer, vocab: Vocab, step: int
) -> None:
    """Of each `step` prompts one."""
    healed_texts = broken_texts = 0
    async with AsyncClient(server.ring) as client:
        for prompt in PROMPTS[::step]:
            whole = await client.generate(prompt, sampling=GREEDY)
            ids = tokenizer.encode(prompt).tolist()
            first = vocab.token_bytes[whole.output_ids[0]].decode()
            for cut in range(1, len(first)):
                begun = prompt + first[:cut]
                healed = await client.generate(begun, sampling=HEALED)
                begun_ids = tokenizer.encode(begun).tolist()
                if begun_ids[: len(begun_ids) - healed.healed_tokens] != ids:
                    continue  # the cut changed more tokens than the last
                assert healed.output_ids == whole.output_ids
                assert healed.text == whole.text[cut:]
                assert healed.prompt_tokens == len(begun_ids)
                healed_texts += 1
                plain = await client.generate(begun, sampling=GREEDY)
                assert plain.healed_tokens == 0
                broken_texts += not plain.text.startswith(first[cut:])
    assert healed_texts >= 15 // step and broken_texts >= 5 // step


async def test_the_seam_of_an_address(server: Server, tokenizer: Tokenizer) -> None:
    prompt = PROMPTS[0] + ":"
    async with AsyncClient(server.ring) as client:
        healed = await client.generate(prompt, sampling=HEALED)
        plain = await client.generate(prompt, sampling=GREEDY)
        canonical = await client.generate(PROMPTS[0] + "://", sampling=GREEDY)
    assert healed.output_ids[:1] == tokenizer.encode("://").tolist()
    assert ("//" + canonical.text).startswith(healed.text) and healed.text.startswith("//www")
    assert not plain.text.startswith("//")


# ---- with a constraint ---------------------------------------------------------------------------


@pytest.mark.parametrize("jump_forward", ["canonical", "off"])
async def test_a_constraint_holds_behind_the_prompt(
    server: Server, tokenizer: Tokenizer, jump_forward: str
) -> None:
    pattern = r"//[a-z]{3,12}\.org"
    sampling = HEALED | {"regex": pattern, "max_new_tokens": 40, "jump_forward": jump_forward}
    async with AsyncClient(server.ring) as client:
        answer = await client.generate("The address is http:", sampling=sampling)
        unhealed = sampling | {"token_healing": False}
        plain = await client.generate("The address is http:", sampling=unhealed)
    assert re.fullmatch(pattern, answer.text) and re.fullmatch(pattern, plain.text)
    assert answer.output_ids[:1] == tokenizer.encode("://").tolist() != plain.output_ids[:1]


@pytest.mark.parametrize(
    "constraint",
    [
        {"choices": ["py", "less", "hazard"]},
        {"json_schema": {"enum": ["x", 1]}},
        {"ebnf": 'root ::= "p" | "(" root ")"', "max_new_tokens": 30},
        {"regex": "[0-9]{3}"},
    ],
)
async def test_each_kind_of_constraint(server: Server, constraint: dict[str, Any]) -> None:
    """` hap` is two tokens; a single token for it only exists with `py` appended."""
    async with AsyncClient(server.ring) as client:
        healed = await client.generate("I am hap", sampling=HEALED | constraint)
        assert healed.healed_tokens == 2
        assert healed.finish is not None and healed.finish.type == "stop"
    if "choices" in constraint:
        assert healed.text in constraint["choices"]
    elif "json_schema" in constraint:
        assert json.loads(healed.text) in ("x", 1)
    elif "ebnf" in constraint:
        assert re.fullmatch(r"\(*p\)*", healed.text)
    else:
        assert re.fullmatch("[0-9]{3}", healed.text)


async def test_bytes_that_no_longer_token_may_have_come_in_their_own(
    server: Server, tokenizer: Tokenizer
) -> None:
    given = tokenizer.encode("I am hap").tolist()[-2:]
    for mode in ("canonical", "off"):
        sampling = HEALED | {"regex": "[0-9]{3}", "jump_forward": mode}
        async with AsyncClient(server.ring) as client:
            healed = await client.generate("I am hap", sampling=sampling)
        assert healed.output_ids[:2] == given and len(healed.text) == 3


# ---- outputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["ring", "http"])
async def test_streams_stops_and_scores(server: Server, way: str) -> None:
    prompt = PROMPTS[0] + ":"
    async with AsyncClient(server.ring if way == "ring" else server.url) as client:
        whole = await client.generate(prompt, sampling=HEALED)
        assert whole.healed_tokens == 1
        snapshots = [output async for output in client.stream(prompt, sampling=HEALED)]
        assert "".join(output.delta for output in snapshots) == whole.text == snapshots[-1].text
        stopped = await client.generate(prompt, sampling=HEALED | {"stop": [":", "www"]})
        assert stopped.text == "//" and stopped.finish is not None
        assert stopped.finish.matched == "www"
        scored = await client.generate(
            prompt, sampling=HEALED, return_logprob=True, logprob_start_len=0
        )
        one = await client.generate(prompt, sampling=HEALED | {"max_new_tokens": 1})
        nothing = await client.generate(prompt, sampling=HEALED | {"max_new_tokens": 0})
    assert scored.output_ids == whole.output_ids and scored.prompt_logprobs is not None
    assert scored.output_logprobs is not None
    assert len(scored.output_logprobs) == len(scored.output_ids)
    assert len(scored.prompt_logprobs) == scored.prompt_tokens - 1
    assert (one.text, one.completion_tokens) == ("//", 1)
    assert (nothing.text, nothing.healed_tokens) == ("", 0)


async def test_http_routes(server: Server) -> None:
    prompt = PROMPTS[0] + ":"
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
        body = {"text": prompt, "sampling_params": HEALED}
        native = (await http.post("/generate", json=body)).json()
        bad = {"text": prompt, "sampling_params": {"token_healing": "yes"}}
        refused = await http.post("/generate", json=bad)
    assert native["text"].startswith("//www")
    assert native["meta_info"]["healed_tokens"] == 1
    assert refused.status_code == 400 and "token_healing" in refused.text
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any") as client:
        completion = await client.completions.create(
            model="smollm2",
            prompt=prompt,
            max_tokens=8,
            temperature=0,
            extra_body={"token_healing": True},
        )
        chat = await client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Say hello."}],
            max_tokens=8,
            temperature=0,
            extra_body={"token_healing": True},
        )
    assert completion.choices[0].text == native["text"]
    assert chat.choices[0].message.content


async def test_requests_are_free_again_behind_the_seam(server: Server) -> None:
    """Many sampled requests at once: none fails, and afterwards all memory is free."""
    sampling = {"temperature": 1.0, "max_new_tokens": 16, "token_healing": True}
    async with AsyncClient(server.ring) as client:
        prompts = [f"{prompt} a{'bcdefgh'[i % 7]}" for i, prompt in enumerate(PROMPTS * 4)]
        outputs = [await client.submit(text=p, sampling=sampling) for p in prompts]
        results = [await generation.result() for generation in outputs]
    assert all(result.finish is not None for result in results)
    assert sum(result.healed_tokens > 0 for result in results) > len(results) // 2
    server.wait_idle()
