"""Errors and answers as the unmodified package of Anthropic knows them."""

from typing import Any

import pytest

from srt.wire.errors import OVERLOADED, RESTARTING, TIMED_OUT, RequestError
from tests.fakes import FakeClient
from tests.srt.gateway.anthropic.package import anthropic
from tests.srt.gateway.anthropic.setup import BODY, CALLED, WEATHER
from tests.srt.gateway.setup import served


def refusing(**error: Any) -> FakeClient:
    client = FakeClient()
    client.refuse = lambda _: RequestError("no", **error)
    return client


ERRORS: list[Any] = [
    ("BadRequestError", 400, FakeClient(), {"tool_choice": {"type": "any"}}, {}),
    ("AuthenticationError", 401, FakeClient(), {}, {"api_keys": ("sesame",)}),
    ("NotFoundError", 404, FakeClient(), {"model": "claude"}, {"strict_model": True}),
    ("RequestTooLargeError", 413, FakeClient(), {"system": "x" * (17 << 20)}, {}),
    ("OverloadedError", 529, refusing(code=OVERLOADED, retryable=True), {}, {}),
    ("ServiceUnavailableError", 503, refusing(code=RESTARTING, retryable=True), {}, {}),
    ("DeadlineExceededError", 504, refusing(code=TIMED_OUT), {}, {}),
]


@pytest.mark.parametrize(
    ("name", "status", "client", "fields", "info"), ERRORS, ids=[name for name, *_ in ERRORS]
)
async def test_errors(
    name: str, status: int, client: FakeClient, fields: dict[str, Any], info: dict[str, Any]
) -> None:
    async with (
        served(client, **info) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as api,
    ):
        with pytest.raises(getattr(anthropic, name)) as error:
            await api.messages.create(**BODY | fields)
    assert error.value.status_code == status and error.value.body["type"] == "error"


async def test_too_much_of_one_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends too many wrong keys, for example, is told so, with the time to wait."""
    monkeypatch.setattr("srt.gateway.limits.failed_keys.MAX_WAITING", 0)
    async with (
        served(FakeClient(), api_keys=("sesame",)) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="wrong", max_retries=0) as api,
    ):
        with pytest.raises(anthropic.RateLimitError) as error:
            await api.messages.create(**BODY)
    assert int(error.value.response.headers["retry-after"]) >= 1
    assert error.value.body["error"]["type"] == "rate_limit_error"


async def test_a_stream_and_its_helpers() -> None:
    client = FakeClient(("Look. ", *CALLED))
    client.cached_tokens = 1
    async with (
        served(client) as server,
        anthropic.AsyncAnthropic(base_url=server.url, auth_token="any") as api,
        api.messages.stream(**BODY, tools=[WEATHER]) as stream,
    ):
        texts = [event.text async for event in stream if event.type == "text"]
        message = await stream.get_final_message()
    assert "".join(texts).strip() == "Look."
    assert message.stop_reason == "tool_use" and message.content[1].input == {"city": "Rome"}
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (0, 1)


async def test_pages_of_models_and_the_beta_routes() -> None:
    async with (
        served(FakeClient(), model_names=("big",)) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as api,
    ):
        assert [model.id async for model in api.models.list()] == ["tiny", "big"]
        assert (await api.models.retrieve("big")).created_at.year > 2000
        raw = await api.beta.messages.with_raw_response.create(**BODY, betas=["x-2026"])
        assert raw.headers["x-ignored-fields"] == "anthropic-beta"
        assert (await raw.parse()).content[0].text == "Hello, wörld"
        assert (await api.messages.create(**BODY))._request_id == "msg_r1"
        with pytest.raises(anthropic.InternalServerError) as error:
            await api.messages.batches.list()
        assert error.value.status_code == 501


async def test_the_tool_runner_asks_for_a_thread_and_goes_on_without() -> None:
    client = FakeClient(CALLED)
    cities: list[str] = []

    @anthropic.beta_async_tool  # type: ignore[untyped-decorator]
    async def weather(city: str) -> str:
        """Tell it."""
        cities.append(city)
        client.pieces = ("18 degrees",)
        return "18"

    async with (
        served(client) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as api,
    ):
        final = await api.beta.messages.tool_runner(**BODY, tools=[weather]).until_done()
    assert (cities, final.content[0].text) == (["Rome"], "18 degrees")
    assert [len(request.messages or []) for request in client.requests] == [1, 3]
