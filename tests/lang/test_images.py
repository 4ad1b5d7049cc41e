"""Images and videos in programs: where they stand, and how they reach our runtime."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import lang as sgl
from examples import essay_judge
from lang.backends.base import Image, Prompt
from lang.backends.sampling import PLAIN
from lang.backends.shown import in_order, with_placeholders
from lang.errors import UnsupportedError
from lang.functions.tracer import constant_prefix
from lang.logs.entries import request_of
from lang.remote.recorder import RecordedState, Recording
from srt.client.media import MediaFile, frames_of
from srt.wire.answer_meta import DraftCounts
from srt.wire.errors import RequestError, RingError
from srt.wire.messages import Continuation, GenerateReq, ScoreReq, unpack_ids
from srt.wire.ring_state import RingEvent
from srt.wire.sampling import SamplingParams
from tests.fakes import READY, FakeClient
from tests.lang.fakes import FakeBackend
from tests.srt.gateway.setup import served
from tests.tokenizer_proc.admission.test_front import EPOCH, A
from tests.tokenizer_proc.media.fake_processor import IMAGE, SeeingFront
from tests.waiting import SOON_S
from tokenizer_proc.dispatch.admission import Admission

CAT, DOG, FILM = b"a cat", b"some dog", b"the film"
PLACEHOLDERS = {"image": "<image>", "video": "<video>"}


class SeeingClient(FakeClient):
    """A ring whose model takes what it has placeholders for."""

    def __init__(self, placeholders: dict[str, str] = PLACEHOLDERS) -> None:
        super().__init__()
        kinds = [*placeholders]
        self.ring = replace(READY, media_kinds=kinds, media_placeholders=placeholders)


@asynccontextmanager
async def endpoint_at(fake: FakeClient) -> AsyncIterator[sgl.RuntimeEndpoint]:
    """Our runtime's back end, at a gateway over the fake."""
    async with served(fake) as server:
        endpoint = sgl.RuntimeEndpoint(server.url, chat_template="chatml")
        try:
            yield endpoint
        finally:
            await asyncio.to_thread(endpoint.close)


async def run_at(fake: FakeClient, body: Any, *args: Any) -> sgl.ProgramState:
    """The program's state, once all of it is over."""
    async with asyncio.timeout(SOON_S), endpoint_at(fake) as endpoint:

        def work() -> sgl.ProgramState:
            state: sgl.ProgramState = sgl.function(body).run(*args, backend=endpoint)
            state.sync()
            return state

        return await asyncio.to_thread(work)


def files(request: Any) -> list[bytes]:
    return [frame for file in request.media for frame in file.frames]


def literal(request: Any) -> list[str]:
    return [request.text[a:b] for a, b in request.literal_spans]


# ---- places ----------------------------------------------------------------------------------


def test_places_in_a_text() -> None:
    cat, dog = Image(CAT), Image(DOG)
    assert [*in_order("abc", [cat, dog], [1, 3])] == ["a", cat, "bc", dog]
    assert [*in_order("abc", [cat, dog], [0, 0])] == [cat, dog, "abc"]
    assert [*in_order("abc", [cat], [])] == [cat, "abc"]
    assert [*in_order("", [cat], [0])] == [cat]


def shown(text: str, places: Sequence[int], spans: Sequence[tuple[int, int]] = ()) -> Any:
    images = tuple(Image(CAT) for _ in places)
    prompt = Prompt(text, images=images, image_places=tuple(places), literal_spans=tuple(spans))
    made, literal_spans = with_placeholders(prompt, PLACEHOLDERS)
    return made, [made[a:b] for a, b in literal_spans]


@pytest.mark.parametrize(
    ("text", "places", "spans", "made", "literal_texts"),
    [
        ("ab", [1], [], "a<image>b", []),
        ("ab", [0, 2], [], "<image>ab<image>", []),
        ("ab", [1, 1], [], "a<image><image>b", []),
        ("abcd", [2], [(1, 3)], "ab<image>cd", ["b", "c"]),
        ("abcd", [1, 3], [(1, 3)], "a<image>bc<image>d", ["bc"]),
        ("abcd", [0, 2], [(1, 2), (2, 4)], "<image>ab<image>cd", ["b", "cd"]),
        ("a<image>b", [1], [], "a<image><image>b", ["<image>"]),
        ("a<image>b", [9], [(0, 9)], "a<image>b<image>", ["a<image>b"]),
        ("<video> <image>", [], [(3, 8)], "<video> <image>", ["<video> ", "<image>"]),
        ("<img>", [], [], "<img>", []),
    ],
)
def test_placeholders_are_put_in_and_others_are_text(
    text: str, places: list[int], spans: list[Any], made: str, literal_texts: list[str]
) -> None:
    assert shown(text, places, spans) == (made, literal_texts)


def test_what_stands_around_a_placeholder() -> None:
    prompt = Prompt("<|image_pad|> <|vision_end|>", images=(Image(CAT),), image_places=(0,))
    made, spans = with_placeholders(prompt, {"image": "<|image_pad|>"})
    assert made == "<|vision_start|><|image_pad|><|vision_end|><|image_pad|> <|vision_end|>"
    assert [made[a:b] for a, b in spans] == ["<|image_pad|>", "<|vision_end|>"]


def test_models_without_eyes() -> None:
    prompt = Prompt("a<image>", images=(Image(FILM, "video", 2),), image_places=(0,))
    for placeholders, reason in (({}, "text only"), ({"image": "<image>"}, "no videos")):
        with pytest.raises(UnsupportedError, match=f"video.*takes {reason}"):
            with_placeholders(prompt, placeholders)
    assert with_placeholders(Prompt("a<image>"), {}) == ("a<image>", [])


# ---- programs --------------------------------------------------------------------------------


def look(s: Any) -> None:
    with s.user():
        s += "  First "
        s += sgl.image(CAT)
        s += " and " + sgl.video(FILM, 3) + "?"
    s += sgl.assistant(sgl.gen("a"))


def test_turns_know_the_places_of_their_images() -> None:
    backend = FakeBackend(images=True)
    state = sgl.function(look).run(backend=backend)
    assert state["a"]
    (prompt,) = backend.prompts
    (turn,) = prompt.messages
    assert (turn.content, turn.image_places) == ("First  and ?", (6, 11))
    assert [prompt.text[place:] for place in prompt.image_places] == [
        " and ?<|im_end|>\n<|im_start|>assistant\n",
        "?<|im_end|>\n<|im_start|>assistant\n",
    ]
    content = state.messages()[0]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text", "video_url", "text"]
    again = ForkingPickler.loads(ForkingPickler.dumps(state))
    assert again.messages() == state.messages()


def test_forks_share_images_and_joins_bring_theirs() -> None:
    backend = FakeBackend(images=True)

    def body(s: Any) -> None:
        s += "Look: " + sgl.image(CAT)
        forks = s.fork(2)
        for fork, data in zip(forks, (DOG, FILM), strict=True):
            fork += " and " + sgl.image(data) + sgl.gen("a")
        forks.join("concate_and_append")
        s += "." + sgl.gen("b")

    state = sgl.function(body).run(backend=backend)
    state.sync()
    *forks, last = backend.prompts
    assert sorted([image.data for image in prompt.images] for prompt in forks) == [
        [CAT, DOG],
        [CAT, FILM],
    ]
    assert forks[0].images[0] is forks[1].images[0]
    assert [image.data for image in last.images] == [CAT, DOG, FILM]
    parts = [
        part if isinstance(part, str) else part.data
        for part in in_order(last.text, last.images, last.image_places)
    ]
    assert parts[0:5:2] == ["Look: ", " and ", f"{state.text()[11:].split(' and ')[0]} and "]
    assert parts[1::2] == [CAT, DOG, FILM]


def test_logs_know_an_image_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "log"
    answered = FakeBackend(images=True)

    def ask(s: Any, data: bytes) -> None:
        s += sgl.image(data) + "What?" + sgl.gen("a")

    program = sgl.function(ask)
    with sgl.Log(path) as log:
        first = program.run(b"\x00unseen bytes\xff", backend=answered, log=log)["a"]
    assert b"unseen bytes" not in path.read_bytes()
    again = FakeBackend(images=True, answer=lambda *_: "another")
    with sgl.Log(path) as log:
        assert program.run(b"\x00unseen bytes\xff", backend=again, replay=log)["a"] == first
        assert again.prompts == []
        with pytest.warns(sgl.LogWarning, match="another prompt"):
            assert program.run(b"other", backend=again, replay=log)["a"] == "another"


def test_requests_differ_by_images_and_their_places() -> None:
    prompts = [
        Prompt("ab", images=images, image_places=places)
        for images in ((Image(CAT),), (Image(DOG),), (Image(CAT, "video"),))
        for places in ((0,), (1,))
    ]
    assert len({str(request_of("m", prompt, None)) for prompt in prompts}) == 6


def test_compiled_programs_tell_images_apart() -> None:
    def body(s: Any) -> None:
        forks = s.fork(3)
        for fork, data in zip(forks, (CAT, DOG, CAT), strict=True):
            fork += sgl.image(data) + "What?" + sgl.gen("a", temperature=0)
        s.set_var("all", [fork["a"] for fork in forks])

    graph = sgl.function(body).trace()
    calls = [node for node in graph.nodes if node.kind == "gen"]
    assert [node.same_as for node in calls] == [None, None, calls[0].id]
    assert sum(node.kind == "image" for node in graph.nodes) == 3
    backend = FakeBackend(images=True)
    state = sgl.function(body).compile().run(backend=backend)
    state.sync()
    assert sorted(prompt.images[0].data for prompt in backend.prompts) == [CAT, DOG]


def test_a_constant_prefix_ends_before_an_image() -> None:
    def body(s: Any, question: str) -> None:
        s += "Look at "
        s += sgl.image(CAT)
        s += " and answer: "
        s += question
        s += sgl.gen("a")

    assert constant_prefix(body, {}) == ["Look at "]
    assert sgl.function(body).trace(question=sgl.arg).constant_parts() == ["Look at "]


def test_programs_on_a_server_refuse_images() -> None:
    session: Any = SimpleNamespace(backend=FakeBackend(images=True))
    state = RecordedState(Recording(session, PLAIN, "look", None, 0))
    for part, kind in ((sgl.image(CAT), "image"), ("a" + sgl.video(FILM, 2), "video")):
        with pytest.raises(UnsupportedError, match=f"{kind}.*programs on a server") as caught:
            state += part
        assert caught.value.param == kind


# ---- our runtime -----------------------------------------------------------------------------


async def test_chats_on_our_runtime() -> None:
    fake = SeeingClient()
    fake.drafts = DraftCounts(verified=2, drafted=5, accepted=3)
    state = await run_at(fake, look)
    (request,) = fake.requests
    assert request.text == (
        "<|im_start|>user\n  First <image> and <video>?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert literal(request)[:3] == ["  First ", " and ", "?"]
    assert list(request.media) == [
        MediaFile("image", (CAT,)),
        MediaFile("video", (FILM,), num_frames=3),
    ]
    meta = state.get_meta_info("a") or {}
    assert meta["media_tokens"] == 14
    assert (meta["spec_verify_ct"], meta["spec_accept_length"]) == (2, 2.5)


async def test_text_that_looks_like_a_placeholder_is_text() -> None:
    fake = SeeingClient()
    fake.pieces = ("I see <image>",)

    def body(s: Any) -> None:
        s += sgl.image(CAT) + "What is <image>? " + sgl.gen("a") + sgl.gen("b")

    await run_at(fake, body)
    assert [request.text for request in fake.requests] == [
        "<image>What is <image>? ",
        "<image>What is <image>? I see <image>",
    ]
    assert [literal(request) for request in fake.requests] == [["<image>"], ["<image>"] * 2]
    first, _ = fake.requests[0].literal_spans[0]
    assert first > 0, "the picture's own stays what it is"
    assert [files(request) for request in fake.requests] == [[CAT], [CAT]]


async def test_selects_and_scores_after_images() -> None:
    fake = SeeingClient()

    def body(s: Any) -> None:
        s += sgl.image(CAT) + "Is it " + sgl.select("kind", ["a cat", "a dog"])
        s += sgl.distribution("good", ["yes", "no"])

    state = await run_at(fake, body)
    assert state["kind"] in ("a cat", "a dog") and state["good"]
    assert [score.text for score in fake.scores] == [
        "<image>Is it ",
        f"<image>Is it {state['kind']}",
    ]
    assert [files(score) for score in fake.scores] == [[CAT], [CAT]]


async def test_models_that_take_text_only_refuse_by_name() -> None:
    for placeholders in ({}, {"video": "<video>"}):
        fake = SeeingClient(placeholders)
        async with endpoint_at(fake) as endpoint:
            prompt = Prompt("x", images=(Image(CAT),), image_places=(0,))
            with pytest.raises(UnsupportedError, match="image"):
                await endpoint.generate(prompt, PLAIN)
            await endpoint.aclose()
        assert fake.requests == []


@pytest.mark.parametrize("known", [None, replace(READY, media_kinds=None)])
async def test_before_the_server_knows_its_model(known: RingEvent | None) -> None:
    """It is asked again, and no image is refused for good."""
    fake = SeeingClient()
    seeing, fake.ring = fake.ring, known
    prompt = Prompt("x", images=(Image(CAT),), image_places=(0,))
    async with endpoint_at(fake) as endpoint:
        await endpoint.generate(Prompt("y"), PLAIN)
        with pytest.raises(RingError, match="has not said yet"):
            await endpoint.generate(prompt, PLAIN)
        fake.ring = seeing
        await endpoint.generate(prompt, PLAIN)
        await endpoint.aclose()
    assert [request.text for request in fake.requests] == ["y", "<image>x"]


@pytest.mark.parametrize("told", [PLACEHOLDERS, {}, None])
async def test_over_the_ring_its_events_tell(told: dict[str, str] | None) -> None:
    """None: the ring has gone silent."""
    asked: list[dict[str, Any]] = []

    async def generate(**request: Any) -> Any:
        asked.append(request)
        raise RequestError("enough")

    class Endpoint(sgl.RuntimeEndpoint):
        async def client(self) -> Any:
            ring = None if told is None else replace(READY, media_placeholders=told)
            return SimpleNamespace(ring=ring, generate=generate)

    prompt = Prompt("x", images=(Image(CAT),), image_places=(1,))
    refusals = {True: RequestError, False: UnsupportedError}
    with pytest.raises(RingError if told is None else refusals[bool(told)]):
        await Endpoint("ipc:///somewhere").generate(prompt, PLAIN)
    assert [request["text"] for request in asked] == (["x<image>"] if told else [])


@pytest.mark.parametrize("is_score", [False, True])
async def test_the_front_reads_prompts_as_they_are_meant(is_score: bool) -> None:
    """The picture's placeholder is one, those that users and models wrote are bytes."""
    text, question = "Is <image> in ", " or <image>?"
    written = f"{text}{question}"
    prompt = Prompt(
        written,
        images=(Image(b"16 8 1"),),
        image_places=(len(text),),
        literal_spans=((0, len(text) + 3),),
    )
    made, spans = with_placeholders(prompt, PLACEHOLDERS)
    refs, blobs = await frames_of([MediaFile("image", (b"16 8 1",))])
    fields: Any = {"rid": "r", "epoch": EPOCH, "text": made, "literal_spans": spans, "media": refs}
    if is_score:
        front_req: Any = ScoreReq(**fields, continuations=[Continuation("a")])
    else:
        front_req = GenerateReq(**fields, sampling=SamplingParams(max_new_tokens=1))
    front = SeeingFront()
    word = front.submit(A, front_req, 0.0, blobs) or front.go_on()["r"]
    assert isinstance(word, Admission), word
    (part,) = word.parts
    ids = unpack_ids(part.input_ids).tolist()
    told = [*text.encode(), *b"[", IMAGE, IMAGE, *b"]", *question.encode()]
    assert ids[: len(told)] == told
    assert [(span.start, span.item.length) for span in part.media] == [(len(text) + 1, 2)]


async def test_an_image_alone_is_a_prompt() -> None:
    fake = SeeingClient()
    await run_at(fake, lambda s: s.__iadd__(sgl.image(CAT) + sgl.gen("a")))
    assert fake.requests[0].text == "<image>" and files(fake.requests[0]) == [CAT]


async def test_the_judge_looks_at_a_picture(tmp_path: Path) -> None:
    """Every branch has the picture, at the same place."""
    path = tmp_path / "tree.png"
    path.write_bytes(CAT)
    fake = SeeingClient()
    verdict = '{"grade": "B", "publish": true}'
    fake.pieces = (verdict,)
    async with asyncio.timeout(SOON_S), endpoint_at(fake) as endpoint:
        found = await asyncio.to_thread(
            lambda: essay_judge.main(endpoint, "Trees are good.", image=str(path))
        )
    assert found["verdict"]["grade"] == "B" and len(found["judgment"]) == 3
    asked = [*fake.requests, *fake.scores]
    assert len(asked) == 6 and all(files(request) == [CAT] for request in asked)
    head = "<|im_start|>user\n<image>Essay:\nTrees are good."
    assert all((request.text or "").count(head) == 1 for request in asked)
