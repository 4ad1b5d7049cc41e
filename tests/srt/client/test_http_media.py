"""Pictures and videos over HTTP: the gateway gets the request that the client was given."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

import srt
from srt.client.generation import Request, ScoreRequest
from srt.client.http_client import HttpClient
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
    ]
    async with served(fake, media=RULES) as server, HttpClient(server.url) as client:
        for request in asked:
            for streams in (False, True):
                if streams:
                    samples = await client.submit_samples(request)
                    outputs = [await each.result() for each in samples]
                    assert samples[0].media_tokens == 7 * len(request.media)
                else:
                    outputs = await client.complete(request)
                assert {each.media_tokens for each in outputs} == {7 * len(request.media)}
    expected = [list(each.media) for each in asked for _ in range(2)]
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
        assert caught.value.info.param == "image_data[3]"
    assert shown(fake.requests) == [[FRAMES], [IMAGE]]
    assert shown(fake.scores) == [[SHARP]]


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (Request(text="a", media=[IMAGE, VIDEO, IMAGE]), "media[1]"),
        (replace(CHAT, scoring=Scoring()), "return_logprob"),
        (replace(CHAT, media=[IMAGE]), "media"),
    ],
)
async def test_what_the_routes_have_no_field_for(request_: Request, param: str) -> None:
    fake = SeeingClient()
    async with served(fake, media=RULES) as server, HttpClient(server.url) as client:
        with pytest.raises(RequestError) as caught:
            await client.submit(request_)
    assert caught.value.info.param == param
    assert fake.requests == []


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
