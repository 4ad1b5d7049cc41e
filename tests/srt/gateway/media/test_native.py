"""SGLang's `image_data` and `video_data`: all their forms, batches, samples and errors."""

from typing import Any

import pytest

from srt.client.media import MediaFile
from srt.wire.errors import CONTEXT_LENGTH, RequestError
from tests.fakes import FakeClient
from tests.srt.gateway.media.setup import (
    CAT,
    DOG,
    FILM,
    RULES,
    SeeingClient,
    base64_of,
    data_url,
)
from tests.srt.gateway.setup import error_of, in_process, sse_payloads

ONE = {"text": "<image> a"}
TWO = {"text": ["<image> a", "<image> b"]}


async def post(body: Any, client: FakeClient | None = None, path: str = "/generate") -> Any:
    async with in_process(client or SeeingClient(), media=RULES) as http:
        return await http.post(path, json=body)


def shown(client: FakeClient) -> list[list[bytes]]:
    return [[frame for file in r.media for frame in file.frames] for r in client.requests]


@pytest.mark.parametrize(
    ("prompts", "data", "files"),
    [
        (ONE, base64_of(CAT), [[CAT]]),
        (ONE, data_url(CAT), [[CAT]]),
        (ONE, {"url": base64_of(CAT)}, [[CAT]]),
        (ONE, [base64_of(CAT), data_url(DOG)], [[CAT, DOG]]),
        (ONE, None, [[]]),
        (ONE, "", [[]]),
        (ONE, [], [[]]),
        ({"input_ids": [5, 6]}, base64_of(CAT), [[CAT]]),
        (TWO, base64_of(CAT), [[CAT], [CAT]]),
        (TWO, [base64_of(CAT), base64_of(DOG)], [[CAT], [DOG]]),
        (TWO, [base64_of(CAT), None], [[CAT], []]),
        (TWO, [[base64_of(CAT), base64_of(DOG)], []], [[CAT, DOG], []]),
        (TWO, [[base64_of(CAT)], base64_of(DOG)], [[CAT], [DOG]]),
        ({"text": ["a"]}, [[base64_of(CAT), base64_of(DOG)]], [[CAT, DOG]]),
    ],
)
async def test_forms(prompts: dict[str, Any], data: Any, files: list[list[bytes]]) -> None:
    client = SeeingClient()
    response = await post({**prompts, "image_data": data}, client)
    assert response.status_code == 200, response.text
    assert shown(client) == files
    answers = response.json() if isinstance(response.json(), list) else [response.json()]
    tokens = [answer["meta_info"].get("media_tokens", 0) for answer in answers]
    assert tokens == [7 * len(each) for each in files]


async def test_videos_and_options() -> None:
    client = SeeingClient()
    body = {
        **ONE,
        "image_data": {"url": base64_of(CAT), "detail": "low"},
        "video_data": [{"url": base64_of(FILM), "num_frames": 4}, base64_of(CAT, DOG)],
        "modalities": ["image", "multi-images", "video", "text"],
    }
    assert (await post(body, client)).status_code == 200
    assert client.requests[0].media == (
        MediaFile("image", (CAT,), "low"),
        MediaFile("video", (FILM,), "auto", 4),
        MediaFile("video", (CAT, DOG)),
    )


async def test_samples_and_streams() -> None:
    client = SeeingClient()
    data = [base64_of(CAT), base64_of(DOG)]
    body = {**TWO, "image_data": data, "stream": True, "sampling_params": {"n": 2}}
    events = sse_payloads((await post(body, client)).text)
    assert {event["index"] for event in events} == {0, 1, 2, 3}
    assert {event["meta_info"]["media_tokens"] for event in events} == {7}
    assert shown(client) == [[CAT], [DOG]]


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({**ONE, "image_data": "%%%"}, "image_data", "is not valid base64"),
        ({**ONE, "image_data": ["AAAA", "AAA"]}, "image_data[1]", "is not valid base64"),
        ({**ONE, "image_data": [["AAAA"]]}, "image_data[0]", "for several prompts"),
        ({**ONE, "image_data": 5}, "image_data", "expected"),
        (
            {**ONE, "image_data": {"url": "x", "format": "rgb"}},
            "image_data.format",
            "unknown field",
        ),
        ({**ONE, "image_data": {"url": "AAA"}}, "image_data.url", "is not valid base64"),
        ({**ONE, "image_data": "http://evil.test/"}, "image_data", "--media-domain"),
        ({**ONE, "image_data": "/etc/passwd"}, "image_data", "nor a data: or http(s) URL"),
        ({**ONE, "image_data": ["AAAA"] * 4}, "image_data[3]", "--limit-media"),
        ({**ONE, "video_data": ["AAAA"] * 4}, "video_data[3]", "--limit-media"),
        ({**TWO, "image_data": ["AAAA"]}, "image_data", "one entry per prompt (2)"),
        ({**TWO, "image_data": ["AAAA", ["AAAA", "A"]]}, "image_data[1][1]", "valid base64"),
        ({**TWO, "image_data": [None, ["A"] * 4]}, "image_data[1][3]", "--limit-media"),
        ({**ONE, "modalities": ["audio"]}, "modalities[0]", "nvalid enum value"),
        ({**ONE, "audio_data": "AAAA"}, "audio_data", "not supported"),
        (
            {**ONE, "image_data": "AAAA", "return_prompt_token_ids": True},
            "image_data",
            "exclude each other",
        ),
    ],
)
async def test_errors_name_the_field(body: dict[str, Any], param: str, reason: str) -> None:
    client = SeeingClient()
    response = await post(body, client)
    error = error_of(response)
    assert response.status_code == 400 and client.requests == []
    assert error["param"].removesuffix("[...]") == param and reason in error["message"]


async def test_a_model_that_reads_only() -> None:
    error = error_of(await post({**ONE, "image_data": "%%%"}, FakeClient()))
    assert error["message"] == "image_data: this model takes text only"


async def test_what_the_ring_says() -> None:
    client = SeeingClient()
    client.refusals[1] = RequestError(": no picture", at="media[0]")
    error = error_of(await post({**TWO, "image_data": [None, ["AAAA"]]}, client))
    assert error["message"] == "image_data[1][0]: no picture"
    client = SeeingClient()
    client.refusals[0] = RequestError("too long", param="text", code=CONTEXT_LENGTH)
    error = error_of(await post({**ONE, "image_data": "AAAA"}, client))
    assert (error["param"], error["code"]) == ("text", CONTEXT_LENGTH)


async def test_scores() -> None:
    client = SeeingClient()
    body: dict[str, Any] = {"text": "<image>", "continuations": ["a", "b"]}
    response = await post({**body, "image_data": [base64_of(CAT)]}, client, "/score_choices")
    assert response.status_code == 200
    assert client.scores[0].media == (MediaFile("image", (CAT,)),)
    client.error = RequestError(": no picture", at="media[0]")
    error = error_of(await post({**body, "image_data": "AAAA"}, client, "/score_choices"))
    assert error["message"] == "image_data: no picture"


async def test_pictures_and_videos() -> None:
    """The ring knows which placeholder is whose; its errors keep the body's names."""
    client = SeeingClient()
    body = {
        "text": "<video> <image><image>",
        "video_data": base64_of(FILM),
        "image_data": [base64_of(CAT), base64_of(DOG)],
    }
    for number, param in enumerate(["image_data[0]", "image_data[1]", "video_data"]):
        client.refusals[number] = RequestError(": no picture", at=f"media[{number}]")
        assert error_of(await post(body, client))["param"] == param
    assert shown(client) == [[CAT, DOG, FILM]] * 3


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/generate", {"text": "<image>"}, "image_data"),
        ("/generate", {"messages": [{"role": "user", "content": "<image>"}]}, "messages"),
        ("/score_choices", {"text": "<image>", "continuations": ["a"]}, "image_data"),
        ("/v1/completions", {"prompt": "<image>"}, "prompt"),
        ("/v1/completions", {"prompt": ["<image>", "a"]}, "prompt[0]"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ("/v1/responses", {"input": "a"}, "input"),
    ],
)
async def test_placeholders_of_bodies_that_show_nothing(
    route: str, body: dict[str, Any], param: str
) -> None:
    client = SeeingClient()
    client.refuse = lambda _: RequestError(": the prompt has 1 placeholders", at="media")
    error = error_of(await post(body, client, route))
    assert error["message"] == f"{param}: the prompt has 1 placeholders"


async def test_another_number_of_placeholders() -> None:
    client = SeeingClient()
    client.refusals[0] = RequestError(": the prompt has 0 placeholders", at="media")
    error = error_of(await post({**ONE, "video_data": ["AAAA"]}, client))
    assert error["message"] == "video_data: the prompt has 0 placeholders"


async def test_chats() -> None:
    client = SeeingClient()
    image = {"type": "image_url", "image_url": {"url": data_url(CAT)}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, image]}]}
    client.refusals[1] = RequestError(": no picture", at="media[0]")
    answer = (await post(body, client)).json()
    assert answer["meta_info"]["media_tokens"] == 7 and shown(client) == [[CAT]]
    error = error_of(await post(body, client))
    assert error["message"] == "messages[0].content[1].image_url.url: no picture"
    error = error_of(await post(body | {"return_prompt_token_ids": True}, client))
    assert error["message"] == "messages and return_prompt_token_ids exclude each other"
