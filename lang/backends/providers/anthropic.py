"""Anthropic's models, through its official package.

The package does HTTP, retries and streams. Marks of its prompt cache stand where the program's
states were forked and where the constant beginning of a batch's prompts ends: the language knows
both, so nobody marks by hand.
"""

import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from lang.backends.base import Completion
from lang.backends.features import ANTHROPIC, ANTHROPIC_2023, features_of
from lang.backends.openai_answer import cut_off
from lang.backends.openai_http import REQUEST_TIMEOUT, code_of, without_keys
from lang.backends.providers.anthropic_request import body_of
from lang.backends.providers.chat import THINKS, Asked, ChatProvider
from lang.backends.providers.packages import is_of_http, key_of, package
from lang.backends.schemas.strict import ANTHROPIC as RULES
from lang.errors import FilterError, RefusalError
from srt import forked
from srt.wire.errors import INTERNAL, UNAVAILABLE, ConfigError, RequestError

MAX_PREFIXES = 16  # constant beginnings of batches that are remembered
_OLD_VERSION = "2023-06-01"
_FINISH = {"max_tokens": "length", "model_context_window_exceeded": "length"}


class Anthropic(ChatProvider):
    """A model of Anthropic's messages API. The package `anthropic` is the extra `anthropic`.

    Address and key default to ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY. `api_version` None is the
    package's own; version 2023-06-01 takes temperature, top_p and top_k, which later ones refuse.
    `thinking` is the API's object, or "adaptive" or "disabled"; thoughts are `reasoning_content` of
    the meta info. `cache` False leaves out the marks of the prompt cache. `without` and `also`
    change what the model is known to take. Raises ConfigError for what is missing.
    """

    provider = "Anthropic"
    advice = (
        ": leave it out, or, for a model that takes it, name it in `also`; temperature, top_p and "
        f"top_k need api_version={_OLD_VERSION!r} too"
    )

    def __init__(
        self,
        model_name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api_version: str | None = None,
        thinking: str | Mapping[str, Any] | None = None,
        cache: bool = True,
        default_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        without: Iterable[str] = (),
        also: Iterable[str] = (),
        timeout_s: float = 600.0,
        max_retries: int = 3,
    ) -> None:
        self._module = package("anthropic", "sgl.Anthropic", "anthropic")
        self._key = key_of(api_key, ("ANTHROPIC_API_KEY",), "sgl.Anthropic")
        table = ANTHROPIC_2023 if api_version == _OLD_VERSION else ANTHROPIC
        features = features_of(table, model_name, without, also)
        features -= {"several"} if cache else {"several", "cache"}  # the API has no `n`
        fields = _thinking(thinking)
        thinks = fields and fields["thinking"].get("type") != "disabled"
        super().__init__(model_name, features, RULES, THINKS if thinks else None)
        self._fields = dict(extra_body or {}) | fields
        headers = dict(default_headers or {})
        if api_version is not None:
            headers["anthropic-version"] = api_version
        self._client_options: dict[str, Any] = {
            "base_url": base_url or os.environ.get("ANTHROPIC_BASE_URL"),
            "default_headers": headers,
            "timeout": timeout_s,
            "max_retries": max_retries,
        }
        self._client: Any = None
        self._prefixes: dict[str, None] = {}
        forked.renew_in_children(self, Anthropic._begin_in_child)

    def _begin_in_child(self) -> None:
        forked.leave(self._client)
        self._client = None

    async def fingerprint(self) -> str:
        return f"anthropic {self._client_options['base_url'] or ''} {self.model_name}"

    async def prefetch(self, prefix: str) -> None:
        """Nothing is sent: prompts that begin with `prefix` are marked at its end."""
        self._prefixes[prefix] = None
        while len(self._prefixes) > MAX_PREFIXES:
            del self._prefixes[next(iter(self._prefixes))]

    def _body(self, asked: Asked) -> dict[str, Any]:
        prefixes = self._prefixes if "cache" in self._features else None
        made = body_of(asked, self._template, prefixes)
        extra = self._fields | made.pop("extra_body", {})
        return {"model": self.model_name, **made} | ({"extra_body": extra} if extra else {})

    async def _ask(self, body: dict[str, Any], count: int) -> list[Completion]:
        with self._errors():
            message = await self._api().messages.create(**body)
            reader = _Reader()
            reader.begin(message)
            for block in message.content:
                reader.add_block(block)
            reader.end(message, message.usage)
        return [reader.completion()]

    async def _parts(self, body: dict[str, Any]) -> AsyncGenerator[Completion, None]:
        reader = _Reader()
        with self._errors():
            stream = await self._api().messages.create(**body, stream=True)
            try:
                async for event in stream:
                    if reader.take(event):
                        yield reader.partial()
            finally:
                await stream.close()
        yield reader.completion()

    def _api(self) -> Any:
        """Made in the loop that uses it."""
        if self._client is None:
            options = self._client_options
            self._client = self._module.AsyncAnthropic(api_key=self._key, **options)
        return self._client

    @contextmanager
    def _errors(self) -> Any:
        """The package's errors as ours, without the key, which may stand in a server's message."""
        module = self._module
        try:
            yield
        except module.APITimeoutError:
            silent = f"Anthropic was silent for {self._client_options['timeout']:g} s"
            raise RequestError(silent, code=REQUEST_TIMEOUT, retryable=True) from None
        except module.APIStatusError as error:
            raise self._of_status(error) from None
        except module.APIResponseValidationError as error:
            raise RequestError(self._said(error), code=INTERNAL) from None
        except module.APIConnectionError as error:
            why = self._said(error.__cause__ or error)
            message = f"cannot reach Anthropic, or lost it: {why}"
            raise RequestError(message, code=UNAVAILABLE, retryable=True) from None
        except module.AnthropicError as error:
            raise RequestError(self._said(error), code=INTERNAL) from None
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            message = f"Anthropic's answer is not of the expected form: {self._said(error)}"
            raise RequestError(message, code=INTERNAL) from None
        except Exception as error:  # in a stream
            if not is_of_http(error):
                raise
            message = f"lost Anthropic: {self._said(error)}"
            raise RequestError(message, code=UNAVAILABLE, retryable=True) from None

    def _of_status(self, error: Any) -> RequestError:
        body: Any = error.body if isinstance(error.body, dict) else {}
        detail: Any = body.get("error") if isinstance(body.get("error"), dict) else {}
        kind = str(detail.get("type") or "")
        status = _STATUS_OF.get(kind, error.status_code)  # a stream's error came after a 200
        code = code_of(status)
        message = without_keys(str(detail.get("message") or error), [self._key])
        return RequestError(message, code=code, retryable=status == 429 or status >= 500)

    def _said(self, error: BaseException) -> str:
        return without_keys(str(error) or type(error).__name__, [self._key])

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


_STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def _thinking(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {"thinking": dict(given)}
    if given not in ("adaptive", "disabled"):
        raise ConfigError(f"thinking {given!r}: expected 'adaptive', 'disabled' or an object")
    return {"thinking": {"type": given}}


class _Reader:
    """Collects a message, whole or event by event."""

    def __init__(self) -> None:
        self.text = ""
        self._thoughts = self._id = ""
        self._stop: Any = None  # what has stop_reason, stop_sequence and stop_details
        self._tokens: dict[str, int] = {}

    def begin(self, message: Any) -> None:
        """The message's frame."""
        self._id = message.id or ""
        self._count(message.usage)

    def add_block(self, block: Any) -> bool:
        """A block of the content; returns whether it has text."""
        if block.type == "text":
            self.text += block.text
            return bool(block.text)
        if block.type == "thinking":
            self._thoughts += block.thinking
        return False

    def end(self, stop: Any, usage: Any) -> None:
        """Why it ended, and its tokens."""
        self._stop = stop
        self._count(usage)

    def take(self, event: Any) -> bool:
        """An event of a stream; returns whether there is new text."""
        match event.type:
            case "message_start":
                self.begin(event.message)
            case "content_block_start":
                return self.add_block(event.content_block)
            case "content_block_delta" if event.delta.type == "text_delta":
                self.text += event.delta.text
                return bool(event.delta.text)
            case "content_block_delta" if event.delta.type == "thinking_delta":
                self._thoughts += event.delta.thinking
            case "message_delta":
                self.end(event.delta, event.usage)
        return False

    def _count(self, usage: Any) -> None:
        for name in _USAGE:
            value = getattr(usage, name, None)
            if value is not None:
                self._tokens[name] = value
        details = getattr(usage, "output_tokens_details", None)
        if details is not None:
            self._tokens["reasoning_tokens"] = details.thinking_tokens

    def completion(self) -> Completion:
        """The whole answer. Raises RequestError if it has no end, RefusalError, FilterError."""
        reason = None if self._stop is None else self._stop.stop_reason
        if reason is None:
            raise cut_off()
        if reason == "refusal":
            self._refuse()
        so_far = self.partial()
        meta = {"id": self._id, **so_far.meta}
        if "reasoning_tokens" in self._tokens:
            meta["reasoning_tokens"] = self._tokens["reasoning_tokens"]
        if written := self._tokens.get("cache_creation_input_tokens"):
            meta["cache_written_tokens"] = written
        return structs.replace(
            so_far,
            finish=_FINISH.get(reason, "stop"),
            matched=self._stop.stop_sequence,
            completion_tokens=self._tokens.get("output_tokens", 0),
            meta=meta,
        )

    def partial(self) -> Completion:
        """The answer so far. Its own tokens are counted at its end only."""
        prompt, read, written = (self._tokens.get(name, 0) for name in _USAGE[:3])
        meta = {"reasoning_content": self._thoughts} if self._thoughts else {}
        return Completion(
            self.text, prompt_tokens=prompt + read + written, cached_tokens=read, meta=meta
        )

    def _refuse(self) -> None:
        details = getattr(self._stop, "stop_details", None)
        category = getattr(details, "category", None)
        words = getattr(details, "explanation", None) or self.text
        if category:
            message = f"Anthropic's filter stopped the answer ({category}): {words!r}"
            raise FilterError(message, category, self.text)
        raise RefusalError(f"the model refused to answer: {words!r}", words)


_USAGE = (
    *("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    "output_tokens",
)
