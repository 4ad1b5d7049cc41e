"""Pictures and videos in chats: their order, roles, limits and errors, OpenAI's own client."""

import asyncio
import base64
import json
import os
from typing import Any

import httpx2
import openai
import pytest

from srt.client.media import MediaFile
from srt.gateway.http import json_pieces
from srt.gateway.http.body import MAX_BODY_BYTES
from srt.gateway.media.fetch import Fetcher
from srt.gateway.media.load import MediaLoader
from srt.wire.errors import BAD_REQUEST, RequestError
from srt.wire.messages import ChatMessage
from tests.fakes import FakeClient
from tests.srt.gateway.media.setup import (
    CAT,
    DOG,
    FILM,
    RULES,
    USER,
    SeeingClient,
    data_url,
    picture,
    text,
    user,
)
from tests.srt.gateway.media.test_fetch import internet, says
from tests.srt.gateway.setup import error_of, in_process, served, sse_payloads
from tests.srt.gateway.test_holds import Pieces
from tests.waiting import SOON_S

ROUTE = "/v1/chat/completions"


async def post(body: Any, client: FakeClient | None = None, **info: Any) -> Any:
    async with in_process(client or SeeingClient(), media=RULES, **info) as http:
        return await http.post(ROUTE, json=body)


async def test_parts_keep_their_order() -> None:
    client = SeeingClient()
    film = {"type": "video_url", "video_url": {"url": data_url(FILM), "num_frames": 8}}
    messages = [
        {"role": "system", "content": "look"},
        user(text("a"), picture(), text("b"), text("c"), text(""), picture(DOG, detail="high")),
        {"role": "assistant", "content": "yes"},
        user(film, text("<image>")),
    ]
    response = await post({"messages": messages, "n": 2, "return_token_ids": True}, client)
    assert response.status_code == 200, response.text
    (request,) = client.requests
    assert request.messages == [
        ChatMessage("system", "look"),
        ChatMessage("user", "", parts=["a", 0, "bc", 1]),
        ChatMessage("assistant", "yes"),
        ChatMessage("user", "", parts=[2, "<image>"]),
    ]
    assert request.media == (
        MediaFile("image", (CAT,)),
        MediaFile("image", (DOG,), "high"),
        MediaFile("video", (FILM,), "auto", 8),
    )
    answer = response.json()
    details = {"cached_tokens": 3, "image_tokens": 21}
    assert answer["usage"]["prompt_tokens_details"] == details
    assert answer["choices"][1]["token_ids"] == [100, 101, 102]
    assert "prompt_token_ids" not in answer and client.tokenized == []


async def test_a_stream() -> None:
    body = {
        "messages": [user(picture())],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    usage = sse_payloads((await post(body)).text)[-1]["usage"]
    assert usage["prompt_tokens_details"]["image_tokens"] == 7


async def test_the_openai_client() -> None:
    client = SeeingClient()
    async with (
        served(client, media=RULES) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as api,
    ):
        answer = await api.chat.completions.create(
            model="tiny",
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is this?"},
                        {
                            "type": "image_url",
                            "image_url": {"url": data_url(CAT), "detail": "low"},
                        },
                    ],
                }
            ],
        )
        with pytest.raises(openai.BadRequestError) as caught:
            await api.chat.completions.create(
                model="tiny",
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "http://evil.test/a"}}
                        ],
                    }
                ],
            )
        card = await api.models.retrieve("tiny")
    assert answer.choices[0].message.content == "Hello, wörld"
    assert client.requests[0].media == (MediaFile("image", (CAT,), "low"),)
    assert caught.value.param == f"{USER}[0].image_url.url"
    assert card.model_dump()["has_image_understanding"] is True


@pytest.mark.parametrize(
    ("content", "param", "reason"),
    [
        ([{"type": "image_url"}], "[0].image_url", "missing field"),
        ([{"type": "image_url", "image_url": None}], "[0].image_url", "missing field"),
        ([{"type": "image_url", "image_url": {}}], "[0].image_url.url", "missing field"),
        ([{"type": "image_url", "image_url": "x"}], "[0].image_url", "expected object"),
        ([text("a"), picture(detail="huge")], "[1].image_url.detail", "nvalid enum value"),
        ([{"type": "video_url", "image_url": {"url": ""}}], "[0].video_url", "missing field"),
        ([{"type": "input_audio"}], "[0].type", "'input_audio' is not supported here"),
        ([{"type": "data:" * 100, "text": "a"}], "[0].type", "is not supported here"),
        ([picture(b"")], "[0].image_url.url", "has no contents"),
        (
            [{"type": "image_url", "image_url": {"url": "https://evil.test/a"}}],
            "[0].image_url.url",
            "from this host (--media-domain)",
        ),
        (
            [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
            "[0].image_url.url",
            "must be a data: URL",
        ),
        (
            [text("a"), {"type": "image_url", "image_url": {"url": "data:;base64,AA"}}],
            "[1].image_url.url",
            "is not valid base64",
        ),
        ([picture()] * 4, "[3].image_url.url", "at most 3 pictures and videos (--limit-media)"),
        ([picture()] * 4097, "", "takes at most 4096 items"),
    ],
)
async def test_errors_name_the_field(content: Any, param: str, reason: str) -> None:
    client = SeeingClient()
    response = await post({"messages": [user(*content)]}, client)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, f"{USER}{param}")
    assert reason in error["message"] and len(error["message"]) < 300
    assert client.requests == []


@pytest.mark.parametrize("role", ["system", "developer", "assistant", "tool"])
async def test_roles_that_show_nothing(role: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    before = [user(text("a")), {"role": "assistant", "content": None, "tool_calls": [call]}]
    message: dict[str, Any] = {"role": role, "content": [text("a"), picture()]}
    if role == "tool":
        message["tool_call_id"] = "c"
    error = error_of(await post({"messages": [*before, message]}))
    assert error["param"] == "messages[2].content[1].image_url.url"
    assert "show no pictures here" in error["message"]


async def test_a_model_that_reads_only() -> None:
    """It is refused before anything is decoded; large bodies as ever."""
    client = FakeClient()
    bad = {"type": "image_url", "image_url": {"url": "data:;base64,not base64"}}
    error = error_of(await post({"messages": [user(bad)]}, client))
    assert error["param"] == f"{USER}[0].image_url.url"
    assert "this model takes text only" in error["message"]
    response = await post({"messages": [user(picture(os.urandom(2**21)))]}, client)
    assert response.status_code == 400
    response = await post({"messages": [user(text("a" * MAX_BODY_BYTES))]}, client)
    assert response.status_code == 413 and client.requests == []


async def test_a_model_that_takes_pictures_only() -> None:
    film = {"type": "video_url", "video_url": {"url": data_url(FILM)}}
    error = error_of(await post({"messages": [user(film)]}, SeeingClient(kinds=("image",))))
    assert "this model takes no videos" in error["message"]


async def test_what_the_ring_says_of_a_picture() -> None:
    """Its number in the request becomes the field."""
    client = SeeingClient()
    client.refusals[0] = RequestError(": a picture that is cut off", at="media[1]")
    response = await post({"messages": [user(picture(), text("a"), picture(DOG))]}, client)
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, BAD_REQUEST)
    assert error["message"] == f"{USER}[2].image_url.url: a picture that is cut off"


async def test_fetched_pictures() -> None:
    client = SeeingClient()
    answer = says(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ncat")
    urls = ["http://pictures.test/cat"] * 2
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    async with internet(answer) as net:
        loader = MediaLoader(net.fetcher())
        assert (await post({"messages": [user(*shown)]}, client, loader=loader)).status_code == 200
        net.names = [["127.0.0.1"]]
        error = error_of(await post({"messages": [user(*shown)]}, client, loader=loader))
    assert [file.frames for file in client.requests[0].media] == [(b"cat",)] * 2
    assert error["param"] == f"{USER}[0].image_url.url"
    assert "has no public address" in error["message"]


async def test_a_redirect_to_this_machine() -> None:
    head = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n"
    shown = {"type": "image_url", "image_url": {"url": "http://pictures.test/"}}
    async with internet(says(head)) as net:
        loader = MediaLoader(net.fetcher())
        response = await post({"messages": [user(shown)]}, loader=loader)
    assert response.status_code == 400 and "redirect" in error_of(response)["message"]


class Hanging:
    """A host whose look-up never ends. `began` and `ended` are set when one has."""

    def __init__(self) -> None:
        self.began, self.ended, self.count = asyncio.Event(), asyncio.Event(), 0
        self.loader = MediaLoader(Fetcher(self._resolve))

    async def _resolve(self, host: str, port: int) -> list[str]:
        self.count += 1
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        raise AssertionError

    async def running(self, count: int) -> None:
        """Return once that many have begun."""
        async with asyncio.timeout(SOON_S):
            while self.count < count:
                self.began.clear()
                await self.began.wait()


def asking(route: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The route, and a body that shows a picture from pictures.test."""
    url = "http://pictures.test"
    if route == ROUTE:
        return route, {
            "messages": [user({"type": "image_url", "image_url": {"url": url}})]
        } | fields
    return route, {"text": "a", "continuations": ["b"], "image_data": url} | fields


SHOWING_ROUTES = [ROUTE, "/score_choices"]


@pytest.mark.parametrize("route", SHOWING_ROUTES)
async def test_a_client_that_leaves_ends_the_fetch(route: str) -> None:
    hanging, client = Hanging(), SeeingClient()
    async with served(client, media=RULES, loader=hanging.loader) as server:
        async with httpx2.AsyncClient(base_url=server.url) as http:
            path, body = asking(route)
            asked = asyncio.ensure_future(http.post(path, json=body))
            await hanging.running(1)
            asked.cancel()
        async with asyncio.timeout(SOON_S):
            await hanging.ended.wait()
    assert not client.requests and not client.scores


@pytest.mark.parametrize("route", SHOWING_ROUTES)
@pytest.mark.parametrize("body", [{"rid": "x"}, {"rid": "x", "prefix": True}, {"abort_all": True}])
async def test_an_abort_while_pictures_are_loaded(route: str, body: dict[str, Any]) -> None:
    """It ends the loading, and the request does not begin."""
    hanging, client = Hanging(), SeeingClient()
    async with in_process(client, media=RULES, loader=hanging.loader) as http:
        path, asked = asking(route, rid="x")
        request = asyncio.ensure_future(http.post(path, json=asked))
        await hanging.running(1)
        assert (await http.post("/abort_request", json=body)).json() == {"aborted": ["x"]}
        async with asyncio.timeout(SOON_S):
            response = await request
        assert (response.status_code, hanging.ended.is_set()) == (409, True)
    assert not client.requests and not client.scores


async def test_aborts_of_requests_that_share_a_name_or_have_none() -> None:
    hanging, client = Hanging(), SeeingClient()
    async with in_process(client, media=RULES, loader=hanging.loader) as http:

        async def ask(count: int, **fields: Any) -> asyncio.Task[httpx2.Response]:
            path, body = asking(ROUTE, **fields)
            task = asyncio.ensure_future(http.post(path, json=body))
            await hanging.running(count)
            return task

        unnamed = await ask(1)
        first, second = await ask(2, rid="x"), await ask(3, rid="x")
        first.cancel()  # what it leaves is not the end of the other
        await asyncio.wait([first])
        assert not second.done()
        answer = await http.post("/abort_request", json={"rid": "x"})
        assert answer.json() == {"aborted": ["x"]}
        assert (await second).status_code == 409 and not unnamed.done()
        answer = await http.post("/abort_request", json={"abort_all": True})
        assert answer.json() == {"aborted": []}
        assert (await unnamed).status_code == 409
    assert client.requests == []


async def test_ten_thousand_parts() -> None:
    shown = {"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}}
    response = await post({"messages": [user(*[shown] * 10_000)]})
    assert (response.status_code, error_of(response)["param"]) == (400, USER)


def large_body(size: int, field: str = "url") -> bytes:
    """With one file of `size` bytes, as JSON."""
    files = base64.b64encode(os.urandom(size))
    shown = {"type": "image_url", "image_url": {"url": "", field: "data:,"}}
    body = json.dumps({"messages": [user(shown, text("a"))]}).encode()
    return body.replace(b"data:,", b"data:image/png;base64," + files)


async def test_a_large_picture() -> None:
    """Of 20 MB, the most there may be."""
    client = SeeingClient()
    async with in_process(client, media=RULES) as http:
        response = await http.post(ROUTE, content=Pieces(large_body(20_000_000)))
    assert response.status_code == 200, response.text
    assert len(client.requests[0].media[0].frames[0]) == 20_000_000


async def test_only_files_may_be_that_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "MAX_TEXT_BYTES", 50_000)
    picture_body, text_body = large_body(60_000), large_body(60_000, "detail")
    client = SeeingClient()
    async with in_process(client, media=RULES) as http:
        assert (await http.post(ROUTE, content=picture_body)).status_code == 200
        response = await http.post(ROUTE, content=text_body)
        assert response.status_code in (400, 413) and len(response.content) < 1000
        response = await http.post(ROUTE, json={"messages": [user(text("a" * 60_000), picture())]})
        assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")
        name = "b" * 60_000
        response = await http.post(ROUTE, json={"messages": [user(picture())], name: 1})
        assert response.status_code in (400, 413) and len(response.content) < 1000
    too_long = large_body(22_000_000)
    async with in_process(client, media=RULES) as http:
        response = await http.post(ROUTE, content=Pieces(too_long))
    assert response.status_code in (400, 413) and len(client.requests) == 1


async def test_completions_and_tokenize_take_none() -> None:
    async with in_process(SeeingClient(), media=RULES) as http:
        response = await http.post("/v1/completions", json={"prompt": [user(picture())]})
        assert (response.status_code, error_of(response)["param"]) == (400, "prompt[0]")
        body = {"prompt": "a", "image_data": data_url(CAT)}
        response = await http.post("/v1/completions", json=body)
        assert (response.status_code, error_of(response)["param"]) == (400, "image_data")
        response = await http.post("/tokenize", json={"messages": [user(picture())]})
        assert error_of(response)["param"] == f"{USER}[0].image_url.url"


async def test_the_card_of_the_model() -> None:
    for client, sees in ((FakeClient(), False), (SeeingClient(), True)):
        async with in_process(client, media=RULES) as http:
            assert (await http.get("/get_model_info")).json()["has_image_understanding"] is sees
            (card,) = (await http.get("/v1/models")).json()["data"]
            assert card["has_image_understanding"] is sees
