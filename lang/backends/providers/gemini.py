"""Google's models, through its official package: the Gemini API, and Vertex AI."""

import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from msgspec import structs

from lang.backends.base import Completion
from lang.backends.features import GEMINI, features_of
from lang.backends.openai_answer import cut_off
from lang.backends.openai_http import REQUEST_TIMEOUT, code_of, without_keys
from lang.backends.providers.chat import THINKS, Asked, ChatProvider
from lang.backends.providers.gemini_request import config_of, contents_of
from lang.backends.providers.packages import is_of_http, key_of, package
from lang.backends.schemas.strict import GEMINI as RULES
from lang.errors import FilterError
from srt import forked
from srt.wire.errors import INTERNAL, UNAVAILABLE, ConfigError, RequestError

FIRST_PAUSE_S = 1.0  # before a request is sent again; doubled each time, with jitter
MAX_PAUSE_S = 60.0
_SENT_AGAIN = [429, 500, 502, 503, 504, 529]
_KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
_WHOLE = {"STOP": "stop", "MAX_TOKENS": "length"}
# Of an answer that the model did not finish, for a reason that is no filter's.
_FAILED = {
    *("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
    *("MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE", "OTHER", "LANGUAGE", "CONTINUATION"),
}


class Gemini(ChatProvider):
    """A model of the Gemini API. The package `google-genai` is the extra `gemini`.

    The key defaults to GEMINI_API_KEY, then GOOGLE_API_KEY. `safety_settings` are the API's objects
    and `thinking` its `thinkingConfig`. `without` and `also` change what the model is known to
    take. Raises ConfigError for what is missing.
    """

    provider = "Gemini"

    def __init__(
        self,
        model_name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        api_version: str | None = None,
        safety_settings: Iterable[Mapping[str, Any]] | None = None,
        thinking: Mapping[str, Any] | None = None,
        default_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        without: Iterable[str] = (),
        also: Iterable[str] = (),
        timeout_s: float = 600.0,
        max_retries: int = 3,
    ) -> None:
        self._module = package("google.genai", f"sgl.{type(self).__name__}", "gemini")
        features = features_of(GEMINI, model_name, without, also)
        # Those without efforts have no thoughts; of others, a budget of 0 turns them off.
        budget = (thinking or {}).get("thinking_budget", (thinking or {}).get("thinkingBudget"))
        thinks = "reasoning_effort" in features and budget != 0
        super().__init__(model_name, features, RULES, THINKS if thinks else None)
        self._config: dict[str, Any] = {}
        if safety_settings is not None:
            self._config["safety_settings"] = [dict(each) for each in safety_settings]
        if thinking is not None:
            self._config["thinking_config"] = dict(thinking)
        self._http: dict[str, Any] = {
            "base_url": base_url,
            "api_version": api_version,
            "headers": dict(default_headers or {}),
            "extra_body": dict(extra_body or {}),
            "timeout": int(timeout_s * 1000),
            "max_retries": max_retries,
        }
        self._account = self._find_account(api_key)
        self._client: Any = None
        forked.renew_in_children(self, Gemini._begin_in_child)

    def _begin_in_child(self) -> None:
        forked.leave(self._client)
        self._client = None

    def _find_account(self, api_key: str | None) -> dict[str, Any]:
        """What the package's client is told of the account."""
        return {"vertexai": False, "api_key": key_of(api_key, _KEYS, "sgl.Gemini")}

    async def fingerprint(self) -> str:
        where = self._http["base_url"] or ""
        return f"{self.provider.lower()} {where} {self.model_name}"

    def _body(self, asked: Asked) -> dict[str, Any]:
        system, contents = contents_of(asked.prompt)
        config = self._config | config_of(asked, system)
        extra = config.pop("extra_body", {})
        if extra:
            config["http_options"] = {"extra_body": self._http["extra_body"] | extra}
        return {"model": self.model_name, "contents": contents, "config": config}

    async def _ask(self, body: dict[str, Any], count: int) -> list[Completion]:
        if count > 1:
            body["config"]["candidate_count"] = count
        with self._errors():
            answer = await self._api().models.generate_content(**body)
            readers = [_Reader() for _ in range(count)]
            for i, reader in enumerate(readers):
                reader.take(answer, i)
        made = [reader.completion() for reader in readers]
        # All tokens of the request are the first one's.
        return [made[0], *(_without_tokens(each) for each in made[1:])]

    async def _parts(self, body: dict[str, Any]) -> AsyncGenerator[Completion, None]:
        reader = _Reader()
        with self._errors():
            stream = await self._api().models.generate_content_stream(**body)
            async with aclosing(stream):
                async for chunk in stream:
                    if reader.take(chunk, 0):
                        yield reader.partial()
        yield reader.completion()

    def _api(self) -> Any:
        """Made in the loop that uses it."""
        if self._client is None:
            http = {name: value for name, value in self._http.items() if value}
            http["retry_options"] = {
                "attempts": http.pop("max_retries", 0) + 1,
                "initial_delay": FIRST_PAUSE_S,
                "max_delay": MAX_PAUSE_S,
                "http_status_codes": _SENT_AGAIN,
            }
            self._client = self._module.Client(http_options=http, **self._account)
        return self._client.aio

    @contextmanager
    def _errors(self) -> Any:
        """The package's errors as ours, without the key, which may stand in a server's message."""
        try:
            yield
        except self._module.errors.APIError as error:
            raise self._of_status(error) from None
        except (ValueError, AttributeError, TypeError, KeyError, IndexError) as error:
            message = f"{self.provider}'s answer is not of the expected form: {self._said(error)}"
            raise RequestError(message, code=INTERNAL) from None
        except Exception as error:  # the package uses one of three HTTP libraries
            if "Timeout" in type(error).__name__:
                silent = f"{self.provider} was silent for {self._http['timeout'] / 1000:g} s"
                raise RequestError(silent, code=REQUEST_TIMEOUT, retryable=True) from None
            if not is_of_http(error):
                raise
            message = f"cannot reach {self.provider}, or lost it: {self._said(error)}"
            raise RequestError(message, code=UNAVAILABLE, retryable=True) from None

    def _of_status(self, error: Any) -> RequestError:
        message = without_keys(str(error.message or error), self._keys())
        status = error.code if isinstance(error.code, int) else 500
        is_wrong_key = status == 400 and "API_KEY_INVALID" in str(error.details)
        code = code_of(401 if is_wrong_key else status)
        return RequestError(message, code=code, retryable=status in _SENT_AGAIN)

    def _said(self, error: BaseException) -> str:
        return without_keys(str(error) or type(error).__name__, self._keys())

    def _keys(self) -> list[str]:
        key = self._account.get("api_key")
        return [key] if key else []

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aio.aclose()
            client.close()


class VertexAI(Gemini):
    """A model of Vertex AI: with `project` and `location` (GOOGLE_CLOUD_PROJECT and
    GOOGLE_CLOUD_LOCATION) and the credentials of the environment or those that are given, or with a
    key of Vertex AI's express mode. The rest is Gemini's.
    """

    provider = "Vertex AI"

    def __init__(
        self,
        model_name: str,
        *,
        project: str | None = None,
        location: str | None = None,
        credentials: Any = None,
        **options: Any,
    ) -> None:
        self._given = {"project": project, "location": location, "credentials": credentials}
        super().__init__(model_name, **options)

    def _find_account(self, api_key: str | None) -> dict[str, Any]:
        if api_key:
            if any(self._given.values()):
                raise ConfigError(
                    "sgl.VertexAI: api_key and project, location, credentials exclude each other"
                )
            key = key_of(api_key, (), "sgl.VertexAI")
            return {"vertexai": True, "api_key": key}
        project = self._given["project"] or os.environ.get("GOOGLE_CLOUD_PROJECT")
        location = self._given["location"] or os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"
        if not project:
            raise ConfigError("sgl.VertexAI: project: give one, or set GOOGLE_CLOUD_PROJECT")
        found = {"vertexai": True, "project": project, "location": location}
        credentials = self._given["credentials"]
        return found if credentials is None else found | {"credentials": credentials}


class _Reader:
    """Collects one candidate, whole or chunk by chunk."""

    def __init__(self) -> None:
        self.text = ""
        self._thoughts = self._id = ""
        self._finish = self._blocked = ""
        self._usage: Any = None

    def take(self, answer: Any, index: int) -> bool:
        """Add what a payload has of candidate number `index`; returns whether there is new text.
        An answer's parts may be a list of several, thoughts among them."""
        self._id = self._id or answer.response_id or ""
        self._usage = answer.usage_metadata or self._usage
        feedback = answer.prompt_feedback
        if feedback is not None and feedback.block_reason:
            self._blocked = _name(feedback.block_reason)
        candidates = answer.candidates or []
        if index >= len(candidates):
            return False
        candidate, length = candidates[index], len(self.text)
        for part in (candidate.content.parts if candidate.content else None) or []:
            if part.text and part.thought:
                self._thoughts += part.text
            elif part.text:
                self.text += part.text
        if candidate.finish_reason:
            self._finish = _name(candidate.finish_reason)
        return len(self.text) > length

    def completion(self) -> Completion:
        """The whole answer. Raises RequestError if it has no end, and FilterError."""
        if self._blocked:
            raise FilterError(f"a filter refused the prompt ({self._blocked})", self._blocked)
        if not self._finish:
            raise cut_off()
        if self._finish in _FAILED:
            message = f"the model ended without an answer: {self._finish}"
            raise RequestError(message, code=INTERNAL, retryable=True)
        if self._finish not in _WHOLE:
            message = f"a filter withheld the answer ({self._finish})"
            raise FilterError(message, self._finish, self.text)
        so_far = self.partial()
        meta = {"id": self._id, **so_far.meta}
        return structs.replace(so_far, finish=_WHOLE[self._finish], meta=meta)

    def partial(self) -> Completion:
        """The answer so far, with what the API has counted."""
        meta: dict[str, Any] = {"reasoning_content": self._thoughts} if self._thoughts else {}
        thought = self._tokens("thoughts_token_count")
        if thought:
            meta["reasoning_tokens"] = thought
        return Completion(
            self.text,
            prompt_tokens=self._tokens("prompt_token_count"),
            cached_tokens=self._tokens("cached_content_token_count"),
            completion_tokens=self._tokens("candidates_token_count") + thought,
            meta=meta,
        )

    def _tokens(self, name: str) -> int:
        return getattr(self._usage, name, None) or 0


def _name(reason: Any) -> str:
    """An enum's value; one that the package does not know yet is a text."""
    return str(getattr(reason, "value", reason))


def _without_tokens(answer: Completion) -> Completion:
    return Completion(answer.text, answer.finish, answer.matched, meta={"id": answer.meta["id"]})
