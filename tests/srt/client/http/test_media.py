"""Pictures and videos over HTTP: the gateway gets the request that the client was given."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

import srt
from srt.client.generation import Request, ScoreRequest
from srt.client.http.client import HttpClient
from srt.client.media import MediaFile
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage
from srt.wire.sampling import SamplingParams, Scoring
from tests.srt.gateway.media.setup import CAT, DOG, FILM, RULES, SeeingClient
from tests.srt.gateway.setup import served

IMAGE = MediaFile("image", (CAT,))
SHARP = MediaFile("image", (DOG,), "high")
VIDEO = MediaFile("video", (FILM,), num_frames=3)
FRAMES = MediaFile("video", (CAT, DOG))
CHAT = Request(
    messages=[
        ChatMessage("system", "Look."),
        ChatMessage("user", "", parts=["This", 1, " is ", 0, 2]),
    ],
    media=[IMAGE, SHARP, VIDEO],
)


def shown(requests: Sequence[Request | ScoreRequest]) -> list[list[MediaFile]]:
    return [list(request.media) for request in requests]


async def test_texts() -> None:
    fake = SeeingClient()
    asked = [
        Request(text="a <image> b", media=[IMAGE]),
        Request(text="a", media=[IMAGE, SHARP, VIDEO]),
        Request(input_ids=[1, 2], media=[FRAMES], sampling=SamplingParams(n=2)),
        Request(text="a", media=[VIDEO, SHARP, FRAMES, IMAGE]),
    ]
    rules = replace(RULES, limit=4)
    async with served(fake, media=rules) as server, HttpClient(server.url) as client:
        for request in asked:
            for streams in (False, True):
                if streams:
                    samples = await client.submit_samples(request)
                    outputs = [await each.result() for each in samples]
                    assert samples[0].meta.media_tokens == 7 * len(request.media)
                else:
                    outputs = await client.complete(request)
                assert {each.media_tokens for each in outputs} == {7 * len(request.media)}
    # Pictures come first; of a kind the order stays, which is all that counts.
    expected = [sorted(each.media, key=lambda m: m.kind) for each in asked for _ in range(2)]
    assert shown(fake.requests) == expected


async def test_chats_and_scores() -> None:
    fake = SeeingClient()
    score = ScoreRequest(text="a", continuations=["b", [3]], media=[SHARP, FRAMES])
    async with served(fake, media=RULES) as server, HttpClient(server.url) as client:
        generation = await client.submit(CHAT)
        assert (await generation.result()).media_tokens == 21
        await client.score(score)
    (request,) = fake.requests
    numbers = [part for part in (request.messages or [])[1].parts if isinstance(part, int)]
    by_place = [request.media[number] for number in numbers]
    assert by_place == [SHARP, IMAGE, VIDEO]
    assert [part for part in (request.messages or [])[1].parts if isinstance(part, str)] == [
        "This",
        " is ",
    ]
    assert shown(fake.scores) == [[SHARP, FRAMES]]


@pytest.mark.parametrize("scoring", [Scoring(), Scoring(start=0, top=2, ids=[5])])
async def test_a_chats_logprobs(scoring: Scoring) -> None:
    """They are those that a text has."""
    fake = SeeingClient()
    async with served(fake, media=RULES) as server, HttpClient(server.url) as client:
        for asked in (CHAT, replace(CHAT, sampling=SamplingParams(n=2))):
            chats = await client.submit_samples(replace(asked, scoring=scoring))
            text = Request(text="a", media=CHAT.media, sampling=asked.sampling, scoring=scoring)
            texts = await client.submit_samples(text)
            for chat, other in zip(chats, texts, strict=True):
                mine, its = await chat.result(), await other.result()
                assert mine.output_logprobs == its.output_logprobs == [-0.5] * 3
                assert mine.output_top_logprobs == its.output_top_logprobs
                assert (mine.output_top_logprobs is not None) == (scoring.top > 0)
                assert mine.output_id_logprobs == its.output_id_logprobs
                assert (mine.prompt_logprobs is None) == (its.prompt_logprobs is None)
    assert [request.scoring for request in fake.requests] == [scoring] * 4
    assert [request.messages is None for request in fake.requests] == [False, True] * 2


async def test_through_the_public_client() -> None:
    fake = SeeingClient()
    message = {"role": "user", "content": ["What is ", {"type": "image", "image": CAT}]}
    async with served(fake, media=RULES) as server, srt.AsyncClient(server.url) as client:
        output = await client.generate("a <video>", media=[srt.Video([CAT, DOG])])
        assert output.media_tokens == 7
        await client.generate(messages=[message])
        await client.score("a", ["b"], media=[srt.Picture(DOG, "high")])
        with pytest.raises(RequestError, match="at most 3 pictures and videos") as caught:
            await client.generate("a", media=[CAT] * 4)
        assert caught.value.info.param == "media[3]"
    assert shown(fake.requests) == [[FRAMES], [IMAGE]]
    assert shown(fake.scores) == [[SHARP]]


async def test_a_medium_that_is_not_there() -> None:
    fake = SeeingClient()
    async with served(fake, media=RULES) as server, HttpClient(server.url) as client:
        with pytest.raises(RequestError) as caught:
            await client.submit(replace(CHAT, media=[IMAGE]))
    assert caught.value.info.param == "media"
    assert fake.requests == []


@pytest.mark.parametrize(
    ("request_", "place"),
    [
        (Request(text="a", media=[VIDEO, IMAGE, SHARP]), 1),
        (Request(text="a", media=[VIDEO, IMAGE, SHARP]), 2),
        (ScoreRequest(text="a", continuations=["b"], media=[VIDEO, IMAGE]), 1),
        (CHAT, 0),
        (CHAT, 2),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_errors_have_the_rings_names(
    request_: Request | ScoreRequest, place: int, streams: bool
) -> None:
    fake = SeeingClient()

    def refuse(asked: Request | ScoreRequest) -> RequestError:
        assert request_.media is not None
        found = list(asked.media).index(request_.media[place])
        return RequestError(": no picture", at=f"media[{found}]")

    fake.refuse = refuse
    async with served(fake, media=RULES) as server, HttpClient(server.url) as client:
        with pytest.raises(RequestError) as caught:
            if isinstance(request_, ScoreRequest):
                await client.score(request_)
            elif streams:
                await client.submit(request_)
            else:
                await client.complete(replace(request_, sampling=SamplingParams(max_new_tokens=2)))
    assert caught.value.info.message == f"media[{place}]: no picture"


async def test_a_large_body_is_made_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SeeingClient()
    made: list[str] = []

    async def to_thread(work: object) -> object:
        made.append("body")
        assert callable(work)
        return work()

    async with served(fake, media=RULES) as server, HttpClient(server.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "to_thread", to_thread)
            await (await client.submit(Request(text="a"))).result()
            assert made == []
            await (await client.submit(Request(text="a", media=[IMAGE]))).result()
            assert made == ["body"]
