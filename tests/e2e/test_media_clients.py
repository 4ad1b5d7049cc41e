"""Every client shows the same pictures and videos to one server, and gets the same answers."""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lang as sgl
import srt
from examples import essay_judge
from srt.llm import LLM, SamplingParams
from tests.checkpoints_vision import make_vision_checkpoint
from tests.e2e.server import Server, running_server

RNG = np.random.default_rng(5)
CAT, DOG = (
    Image.fromarray(RNG.integers(0, 256, (*size, 3), np.uint8)) for size in ((70, 100), (60, 60))
)
FILM = RNG.integers(0, 256, (4, 56, 56, 3), np.uint8)
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 8}
OPTIONS = {"max_total_tokens": 4096, "executor": "torch", "check_invariants": True}
SHOWN = "<|vision_start|><|image_pad|><|vision_end|>"
TEXT = f"<|user|>What is {SHOWN} here?<|end|><|assistant|>"
MESSAGES = [{"role": "user", "content": ["What is ", {"type": "image", "image": CAT}, " here?"]}]


def png(picture: Image.Image) -> bytes:
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("seeing") / "qwen2.5-vl"
    make_vision_checkpoint("qwen2_5_vl", path)
    return path


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--max-total-tokens", "4096", "--executor", "torch", "--check-invariants")
    with running_server(
        tmp_path_factory.mktemp("server"), "--model", str(model), *options
    ) as running:
        yield running


@pytest.mark.full
@pytest.mark.parametrize("way", [pytest.param("ring", marks=pytest.mark.full), "url"])
async def test_the_client(server: Server, way: str) -> None:
    asked: dict[str, Any] = {"sampling": GREEDY}
    async with srt.AsyncClient(getattr(server, way)) as client:
        chat = await client.generate(messages=MESSAGES, **asked)
        text = await client.generate(TEXT, media=[CAT], **asked)
        other = await client.generate(TEXT, media=[png(DOG)], **asked)
        assert chat.output_ids == text.output_ids != other.output_ids
        assert chat.media_tokens == text.media_tokens > other.media_tokens > 0
        assert chat.media_tokens < chat.prompt_tokens
        pair = TEXT.replace(SHOWN, SHOWN * 2)
        twice = await client.generate(pair, media=[CAT, srt.Picture(png(CAT))], **asked)
        assert twice.media_tokens == 2 * chat.media_tokens
        film = await client.generate(
            TEXT.replace("image_pad", "video_pad"), media=[srt.Video(FILM, 2)], **asked
        )
        assert film.media_tokens > 0 and film.output_ids != chat.output_ids
        scores = [
            (await client.score(TEXT, ["yes", "no"], media=[picture])).choices[0].total
            for picture in (CAT, CAT, DOG)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4) and scores[0] != scores[2]
        with pytest.raises(srt.RequestError) as caught:
            await client.generate(messages=[{"role": "user", "content": [_part(b"no picture")]}])
        assert (caught.value.info.param or "").startswith("messages[0].content[0].image")
        with pytest.raises(srt.RequestError, match="placeholders"):
            await client.generate(TEXT, media=[CAT, DOG])


def _part(data: bytes) -> dict[str, Any]:
    return {"type": "image", "image": data}


@pytest.mark.full
async def test_both_ways_give_the_same(server: Server) -> None:
    async with srt.AsyncClient(server.ring) as ring, srt.AsyncClient(server.url) as http:
        clients = (ring, http)
        answers = await asyncio.gather(
            *(each.generate(messages=MESSAGES, sampling=GREEDY) for each in clients)
        )
        assert answers[0].output_ids == answers[1].output_ids
        assert answers[0].media_tokens == answers[1].media_tokens
        scored = [
            await each.generate(
                messages=MESSAGES, sampling=GREEDY, return_logprob=True, top_logprobs=2
            )
            for each in clients
        ]
        assert scored[0].output_logprobs == pytest.approx(scored[1].output_logprobs, abs=1e-4)
        rows = [[token for _, token in row] for row in scored[0].output_top_logprobs or []]
        assert rows == [[i for _, i in row] for row in scored[1].output_top_logprobs or []] != []
        text = TEXT.replace(SHOWN, SHOWN.replace("image", "video") + SHOWN * 2)
        shown: list[list[Any]] = [[CAT, srt.Video(FILM, 2), DOG], [srt.Video(FILM, 2), CAT, DOG]]
        mixed = [
            await each.generate(text, media=media, sampling=GREEDY)
            for each in clients
            for media in shown
        ]
        assert [each.output_ids for each in mixed] == [mixed[0].output_ids] * 4


@pytest.mark.full
def test_llm_and_programs_on_its_server(model: Path) -> None:
    """One server for both."""
    params = SamplingParams(temperature=0, max_tokens=8)
    prompts: list[Any] = [
        {"prompt": TEXT, "multi_modal_data": {"image": CAT}},
        {"prompt": TEXT, "multi_modal_data": {"image": [png(DOG)]}},
        "<|user|>What?<|end|><|assistant|>",
        {
            "prompt": TEXT.replace("image", "video") + SHOWN,
            "multi_modal_data": {"image": CAT, "video": FILM},
        },
    ]
    with LLM(str(model), **OPTIONS) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        (chat,) = llm.chat(MESSAGES, params, use_tqdm=False)
        answers = [output.outputs[0].token_ids for output in outputs]
        assert chat.outputs[0].token_ids == answers[0] != answers[1]
        assert all(answers)
        engine = llm.engine
        batch = engine.generate([TEXT, TEXT], GREEDY, media=[[CAT], [DOG]])
        assert [output.output_ids for output in batch] == answers[:2]
        with sgl.RuntimeEndpoint(f"ipc://{engine.directory}", chat_template=TEMPLATE) as backend:
            _programs(backend, batch[0].text)


TEMPLATE = sgl.ChatTemplate(
    "tiny", {role: (f"<|{role}|>", "<|end|>") for role in ("user", "assistant", "system")}
)


def _programs(backend: sgl.RuntimeEndpoint, answer: str) -> None:
    @sgl.function
    def look(s: Any, data: bytes) -> None:
        s += sgl.user("What is " + sgl.image(data) + " here?")
        s += sgl.assistant(sgl.gen("answer", max_tokens=8))
        s += sgl.user("Is <image> or <|image_pad|> a word?")
        s += sgl.assistant(sgl.select("sure", ["yes", "no"]))

    state = look.run(png(CAT), temperature=0, backend=backend)
    assert state["answer"] == answer and state["sure"] in ("yes", "no")
    info = state.get_meta_info("answer") or {}
    assert 0 < info["media_tokens"] < info["prompt_tokens"]
    assert look.run(png(DOG), temperature=0, backend=backend)["answer"] != answer

    @sgl.function
    def watch(s: Any) -> None:
        s += "<|user|>" + sgl.video(_film(), 2) + "<|end|><|assistant|>"
        s += sgl.gen("answer", max_tokens=4)

    assert watch.run(temperature=0, backend=backend).get_meta_info("answer")["media_tokens"] > 0


def _film() -> bytes:
    """A GIF of some frames, which is a video too."""
    frames = [Image.fromarray(frame) for frame in FILM]
    written = io.BytesIO()
    frames[0].save(written, "GIF", save_all=True, append_images=frames[1:], duration=500)
    return written.getvalue()


@pytest.mark.full
def test_the_judge_sees(server: Server, tmp_path: Path) -> None:
    """The essay judge's branches share its picture: it is encoded once."""
    path = tmp_path / "tree.png"
    path.write_bytes(png(Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8))))
    before = server.stats()["media_encoded_total"]
    with sgl.RuntimeEndpoint(server.url, chat_template=TEMPLATE) as backend:
        state = essay_judge.judge.run(
            "Trees are worth it.", str(path), temperature=0, backend=backend
        )
        assert state["argues"] in ("yes", "no") and len(state["judgment"]) == 3
        assert state["verdict"].startswith('{"grade": "')
        shown = (state.get_meta_info("summary") or {})["media_tokens"]
        judged = [call for call in state.trace() if call.name == "judgment"]
    assert all(call.cached_tokens > shown > 0 for call in judged)
    assert server.stats()["media_encoded_total"] == before + 1
