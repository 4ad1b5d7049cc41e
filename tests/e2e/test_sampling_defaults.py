"""A model's own sampling defaults, which a GGUF file has, on every way to ask for an answer.

The file says that only the likeliest token is left, so what says nothing is answered as greedy
requests are; the model is random, so what the defaults do not reach is answered otherwise.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import httpx2
import pytest

import lang as sgl
from srt import LLM, AsyncClient
from srt.llm import SamplingParams
from srt.wire.programs import Call, Output, Program, Text
from srt.wire.sampling import SamplingParams as OwnParams
from tests.e2e.server import Server, running_server
from tests.e2e.test_spm_models import TEMPLATE
from tests.scheduler_proc.models.families import random_family
from tests.scheduler_proc.models.gguf_families import write_family
from tests.spm_files import add_spm_tokenizer, pieces_and_types
from tests.waiting import SOON_S

PROMPT = "the cat sat on"
CHAT = [{"role": "user", "content": "the cat"}]
UNSET: dict[str, Any] = {}
GREEDY = {"temperature": 0}
NEUTRAL = {"temperature": 1.0, "top_k": -1}
TOKENS = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def describe(writer: gguf.GGUFWriter) -> None:
        add_spm_tokenizer(writer)
        writer.add_chat_template(TEMPLATE)
        writer.add_int32("general.sampling.top_k", 1)
        writer.add_float32("general.sampling.temp", 1.5)
        writer.add_float32("general.sampling.top_p", 7.0)

    path = tmp_path_factory.mktemp("defaults") / "own.gguf"
    family = random_family("llama", vocab_size=len(pieces_and_types()[0]))
    return write_family(family, path, tokenizer=describe).path


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Server]:
    args = ("--model", str(model), "--threads", "1", "--max-total-tokens", "2048")
    with running_server(model.parent, *args) as server:
        yield server


def posted(server: Server, path: str, body: dict[str, Any]) -> Any:
    answer = httpx2.post(server.url + path, json=body, timeout=SOON_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def native(server: Server, sampling: dict[str, Any]) -> Any:
    params = {**sampling, "max_new_tokens": TOKENS, "ignore_eos": True}
    return posted(server, "/generate", {"text": PROMPT, "sampling_params": params})["output_ids"]


def completion(server: Server, sampling: dict[str, Any]) -> Any:
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, **sampling}
    return posted(server, "/v1/completions", body)["choices"][0]["text"]


def chat(server: Server, sampling: dict[str, Any]) -> Any:
    body = {"messages": CHAT, "max_tokens": TOKENS, "ignore_eos": True, **sampling}
    return posted(server, "/v1/chat/completions", body)["choices"][0]["message"]["content"]


def written(server: Server, sampling: dict[str, Any]) -> Any:
    def body(s: Any) -> None:
        s += PROMPT + sgl.gen("a", max_tokens=TOKENS, ignore_eos=True, **sampling)

    with sgl.RuntimeEndpoint(server.ring) as backend:
        return sgl.function(body).run(backend=backend)["a"]


FACES: list[Callable[[Server, dict[str, Any]], Any]] = [native, completion, chat, written]


@pytest.mark.parametrize("face", FACES)
def test_what_is_unset_is_the_models(served: Server, face: Any) -> None:
    assert face(served, UNSET) == face(served, GREEDY) != face(served, NEUTRAL)


def test_null_is_unset(served: Server) -> None:
    nulls = dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "repetition_penalty"))
    assert native(served, nulls) == native(served, GREEDY)


@pytest.mark.parametrize("transport", ["ring", "url"])
async def test_clients_and_programs_of_theirs(served: Server, transport: str) -> None:
    params: dict[str, Any] = {"max_new_tokens": TOKENS, "ignore_eos": True}
    async with AsyncClient(getattr(served, transport)) as client:
        unset = await client.generate(PROMPT, sampling=params)
        greedy = await client.generate(PROMPT, sampling={**params, **GREEDY})
        neutral = await client.generate(PROMPT, sampling={**params, **NEUTRAL})
        async with await client.session() as session:
            call = Call([Text(PROMPT), Output("a", OwnParams(**params))])
            ids = await session.submit(Program(calls=[call]))
            made = "".join([piece async for piece in session.stream(ids["a"])])
    assert unset.output_ids == greedy.output_ids != neutral.output_ids
    assert made == greedy.text


def test_answers_and_server_info_tell_them(served: Server) -> None:
    told = httpx2.get(served.url + "/server_info", timeout=SOON_S).json()["default_sampling_params"]
    assert told["top_k"] == {"value": 1, "source": "own.gguf"}
    assert told["temperature"] == {"value": 1.5, "source": "own.gguf"}
    assert told["top_p"] == {"value": 1.0, "source": "neutral"}
    answer = posted(served, "/v1/responses", {"input": "the cat", "max_output_tokens": 2})
    assert (answer["temperature"], answer["top_p"]) == (1.5, 1.0)
    assert served.log().count("own.gguf: general.sampling.top_p must be in (0, 1]") == 1


@pytest.mark.parametrize("option", ["model", pytest.param("neutral", marks=pytest.mark.full)])
def test_offline(model: Path, option: str) -> None:
    args: dict[str, Any] = {"threads": 1, "max_total_tokens": 2048, "sampling_defaults": option}
    asked: list[dict[str, Any]] = [UNSET, GREEDY, {"temperature": 1.0, "top_k": 0}]
    params = [SamplingParams(max_tokens=TOKENS, ignore_eos=True, **each) for each in asked]
    with LLM(model, **args) as llm:
        outputs = llm.generate([PROMPT] * 3, params)
    unset, greedy, neutral = (output.outputs[0].token_ids for output in outputs)
    assert neutral != greedy
    assert (unset == greedy) == (option == "model")
