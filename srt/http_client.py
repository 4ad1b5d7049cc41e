"""`Client` over a server's HTTP API, for programs that have no way to the ring's sockets.

Every request streams, also when the caller wants the result only: the response's head is how
the server says "admitted". Chats go through the chat route, which tells neither token ids nor
log-probabilities. This transport hears no ring events.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec

from srt.errors import (
    BAD_REQUEST,
    CONFLICT,
    HTTP_STATUS,
    INTERNAL,
    UNAVAILABLE,
    RequestError,
    RingError,
)
from srt.event_lines import event_lines
from srt.generation import ChoiceScore, GenerateOutput, Request, ScoreOutput, ScoreRequest
from srt.messages import Finish, RingEvent
from srt.sampling_params import SamplingParams
from srt.tools.format import message_object, tool_object

CONNECT_TIMEOUT_S = 5.0
WRITE_TIMEOUT_S = 30.0
_STATUS_CODES = {status: code for code, status in HTTP_STATUS.items()} | {400: BAD_REQUEST}
_DATA = b"data: "

Parse = Callable[[Any, GenerateOutput], GenerateOutput]


class HttpClient:
    """A client of the server at `url`. Close it with `close` or use it in `async with`.

    `transport` replaces the network (an ASGI application in tests).
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url.rstrip("/")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S, write=WRITE_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            transport=transport,
        )

    @property
    def ring(self) -> RingEvent | None:
        return None

    async def __aenter__(self) -> "HttpClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Nothing to wait for: connections are made when they are needed."""

    async def close(self) -> None:
        """Close all connections; requests in flight are aborted by the server."""
        await self._http.aclose()

    async def submit(self, request: Request) -> "HttpGeneration":
        body: dict[str, Any] = {
            "stream": True,
            "rid": request.rid,
            "cache_salt": request.cache_salt,
        }
        if request.messages is not None:
            if request.return_logprob:
                message = "return_logprob is not available for messages over HTTP"
                raise RequestError(message, param="return_logprob")
            body |= _chat_body(request)
            return await self._open("/v1/chat/completions", body, _parse_chat)
        body |= {
            "text": request.text,
            "input_ids": None if request.input_ids is None else list(request.input_ids),
            "sampling_params": _native_sampling(request.sampling),
            "return_logprob": request.return_logprob,
            "logprob_start_len": request.logprob_start_len,
        }
        return await self._open("/generate", body, _parse_native)

    async def _open(self, path: str, body: dict[str, Any], parse: Parse) -> "HttpGeneration":
        request = self._http.build_request("POST", path, json=body)
        response = await self._send(request, stream=True)
        return HttpGeneration(response, body.get("rid") or "", parse)

    async def _send(self, request: httpx.Request, stream: bool = False) -> httpx.Response:
        if self._http.is_closed:
            raise RingError("the client was closed")
        try:
            response = await self._http.send(request, stream=stream)
            if response.is_success:
                return response
            await response.aread()
        except httpx.HTTPError as exc:
            raise RingError(f"cannot reach {self.url}: {exc or type(exc).__name__}") from exc
        raise _error_of(response)

    async def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self._send(self._http.build_request(method, path, **options))

    async def score(self, request: ScoreRequest) -> ScoreOutput:
        body = msgspec.structs.asdict(request)
        return _parse_score((await self._call("POST", "/score_choices", json=body)).json())

    async def abort(self, rid: str) -> None:
        await self._call("POST", "/abort_request", json={"rid": rid})

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        await self._call("POST", "/flush_cache", params={"timeout": timeout_s})

    async def stats(self) -> dict[str, Any]:
        states = (await self._call("GET", "/server_info")).json().get("internal_states")
        if not states:
            raise RingError("the server's scheduler did not answer")
        stats: dict[str, Any] = states[0]
        return stats


class HttpGeneration:
    """A request that the server has admitted. To be read by one task at a time."""

    def __init__(self, response: httpx.Response, rid: str, parse: Parse) -> None:
        self._response = response
        self._events = _payloads(response)
        self._parse = parse
        self._last = GenerateOutput(
            rid=rid,
            text="",
            delta="",
            output_ids=[],
            prompt_tokens=int(response.headers.get("srt-prompt-tokens", 0)),
            cached_tokens=0,
            completion_tokens=0,
        )

    @property
    def rid(self) -> str:
        """The caller's id; the server's own one is known from the first snapshot on."""
        return self._last.rid

    @property
    def prompt_tokens(self) -> int:
        """From the response's head, or 0 until the first snapshot if the server tells not."""
        return self._last.prompt_tokens

    @property
    def opens_reasoning(self) -> bool:
        """Never told: the text comes as the model wrote it."""
        return False

    async def __aiter__(self) -> AsyncIterator[GenerateOutput]:
        async for payload in self._events:
            if "error" in payload:
                raise _error(payload["error"], 500)
            last, self._last = self._last, self._parse(payload, self._last)
            # The finished snapshot is held until the stream ends: a chat's usage follows it.
            if self._last.finish is None and _is_news(self._last, last):
                yield self._last
        if self._last.finish is None:
            raise RingError("the server closed the stream before the end")
        yield self._last

    async def result(self) -> GenerateOutput:
        async for output in self:
            last = output
        return last

    async def aclose(self) -> None:
        await self._response.aclose()


def _is_news(now: GenerateOutput, last: GenerateOutput) -> bool:
    """A jump may add text without adding tokens; a token may add no text."""
    return now.completion_tokens > last.completion_tokens or len(now.text) > len(last.text)


async def _payloads(response: httpx.Response) -> AsyncIterator[Any]:
    try:
        async for line in event_lines(response):
            if line == b"data: [DONE]":
                return
            if line.startswith(_DATA):
                yield msgspec.json.decode(line[len(_DATA) :])
    except (httpx.HTTPError, httpx.StreamError) as exc:
        raise RingError(f"lost the server: {exc or type(exc).__name__}") from exc
    finally:
        await response.aclose()


def _native_sampling(sampling: SamplingParams) -> dict[str, Any]:
    if sampling.max_new_tokens is None:
        message = "max_new_tokens must be a number for text and input_ids over HTTP"
        raise RequestError(message, param="max_new_tokens")
    return _sampling_fields(sampling)


def _sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    """The fields under their own names; "" is no constraint over HTTP, so it is refused here."""
    for name in ("regex", "json_schema", "ebnf", "structural_tag"):
        if getattr(sampling, name) == "":
            raise RequestError(f"{name} must not be empty", param=name)
    return {name: getattr(sampling, name) for name in sampling.__struct_fields__}


def _chat_body(request: Request) -> dict[str, Any]:
    """The chat route's body that asks for the text as the model writes it."""
    body = _sampling_fields(request.sampling)
    body["max_tokens"] = body.pop("max_new_tokens")
    body["min_tokens"] = body.pop("min_new_tokens")
    body["messages"] = [
        message_object(message, arguments_as_text=True) for message in request.messages or []
    ]
    body["stream_options"] = {"include_usage": True}
    body["separate_reasoning"] = body["parse_tool_calls"] = False
    if request.tools:
        body["tools"] = [tool_object(tool) for tool in request.tools]
    return body


def _parse_native(payload: Any, last: GenerateOutput) -> GenerateOutput:
    meta = payload["meta_info"]
    output_logprobs = meta.get("output_token_logprobs")
    prompt_logprobs = meta.get("input_token_logprobs")
    return GenerateOutput(
        rid=meta["id"],
        text=payload["text"],
        delta=payload["text"][len(last.text) :],
        output_ids=payload["output_ids"],
        prompt_tokens=meta["prompt_tokens"],
        cached_tokens=meta["cached_tokens"],
        completion_tokens=meta["completion_tokens"],
        finish=_finish(meta["finish_reason"]),
        output_logprobs=None if output_logprobs is None else [e[0] for e in output_logprobs],
        prompt_logprobs=None if not prompt_logprobs else [(e[0], e[1]) for e in prompt_logprobs],
        jump_forward_tokens=meta.get("jump_forward_tokens", 0),
        forward_passes=meta.get("forward_passes", 0),
        healed_tokens=meta.get("healed_tokens", 0),
    )


def _parse_score(payload: Any) -> ScoreOutput:
    return ScoreOutput(
        rid=payload["id"],
        choices=[ChoiceScore(c["token_ids"], c["logprobs"]) for c in payload["choices"]],
        start=payload["start"],
        prompt_tokens=payload["prompt_tokens"],
        cached_tokens=payload["cached_tokens"],
        computed_tokens=payload["computed_tokens"],
    )


def _finish(reason: Any) -> Finish | None:
    if reason is None:
        return None
    error = None
    if reason["type"] == "abort":
        error = RequestError(reason.get("message") or "aborted", code=CONFLICT).info
    return Finish(reason["type"], reason.get("matched"), error)


def _parse_chat(payload: Any, last: GenerateOutput) -> GenerateOutput:
    replace = msgspec.structs.replace
    if usage := payload.get("usage"):
        return replace(
            last,
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            completion_tokens=usage["completion_tokens"],
        )
    choice = payload["choices"][0]
    delta = choice["delta"].get("content") or ""
    word = choice["finish_reason"]
    reason = word and {"type": word, "matched": choice.get("matched_stop")}
    return replace(
        last,
        rid=last.rid or payload["id"],
        text=last.text + delta,
        delta=delta,
        # A chunk does not tell its tokens; the usage at the end has the exact count.
        completion_tokens=last.completion_tokens + (1 if delta else 0),
        finish=_finish(reason),
    )


def _error_of(response: httpx.Response) -> RequestError:
    try:
        detail = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        detail = {"message": response.text[:500] or response.reason_phrase}
    return _error(detail, response.status_code)


def _error(detail: Any, status: int) -> RequestError:
    if not isinstance(detail, dict):
        detail = {"message": str(detail)}
    message = str(detail.get("message") or f"HTTP {status}")
    fallback = _STATUS_CODES.get(status, INTERNAL if status >= 500 else BAD_REQUEST)
    code = detail.get("code")
    if not isinstance(code, str):
        code = fallback
    if code == UNAVAILABLE:
        return RingError(message)
    retryable = bool(detail.get("retryable", status in (429, 503)))
    return RequestError(message, param=detail.get("param"), code=code, retryable=retryable)
