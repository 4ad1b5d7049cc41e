"""Models of all providers that the package litellm knows, in OpenAI's form."""

import asyncio
import itertools
import os
import random
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from lang.backends.base import Completion
from lang.backends.features import features_of
from lang.backends.openai_answer import Answer, answers_of
from lang.backends.openai_host import checked_key
from lang.backends.openai_http import FIRST_PAUSE_S, JITTER, code_of, without_keys
from lang.backends.openai_request import chat_messages, refusal_of
from lang.backends.providers.chat import Asked, ChatProvider
from lang.backends.providers.packages import package
from lang.backends.schemas.strict import OPENAI as RULES
from lang.errors import FilterError
from srt.wire.errors import CONTEXT_LENGTH, INTERNAL, ConfigError, RequestError

_FIELDS = {  # of the language, by litellm's names
    name: name
    for name in (
        *("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty"),
        *("logit_bias", "seed", "reasoning_effort", "verbosity", "service_tier"),
    )
}
# Names of its parameters for ours, where they differ.
_SAID = {"stop": "stop", "return_logprob": "logprobs", "several": "n"}


class LiteLLM(ChatProvider):
    """A model as litellm names it, such as "mistral/mistral-large-latest". The package `litellm` is
    the extra `litellm`; keys are in the environment, by the names that litellm has for them, or
    `api_key`. What the model takes is what litellm says of it, less `without`, and `also`.
    Raises ConfigError for a provider that litellm does not know, and for missing keys.
    """

    provider = "LiteLLM"

    def __init__(
        self,
        model_name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        default_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        without: Iterable[str] = (),
        also: Iterable[str] = (),
        timeout_s: float = 600.0,
        max_retries: int = 3,
    ) -> None:
        # Its table of models: the one of the package, not the newest of its repository.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        self._module = package("litellm", "sgl.LiteLLM", "litellm")
        self._module.suppress_debug_info = True  # it prints advice for each error
        features = self._known(model_name)
        features = features_of((("", features),), model_name, without, also)
        super().__init__(model_name, features, RULES, refusal_of(model_name))
        kept = (value for name, value in os.environ.items() if name.endswith("_API_KEY"))
        self._keys = [key for key in (api_key, *kept) if key]  # which no message may have
        if api_key:
            api_key = checked_key(api_key, "sgl.LiteLLM: api_key")
        elif not base_url:
            missing = self._module.validate_environment(model_name).get("missing_keys") or []
            if missing:
                raise ConfigError(f"sgl.LiteLLM: api_key: give one, or set {', '.join(missing)}")
        self._options: dict[str, Any] = {
            "model": model_name,
            "api_key": api_key,
            "base_url": base_url,
            "extra_headers": dict(default_headers or {}),
            "timeout": timeout_s,
            "num_retries": 0,
            "max_retries": 0,
        }
        self._max_retries = max_retries  # done here: its own are not all providers'
        self._fields = dict(extra_body or {})

    def _known(self, model: str) -> frozenset[str]:
        """The features that litellm knows of a model."""
        try:
            name, provider, _, _ = self._module.get_llm_provider(model)
        except Exception as error:
            raise ConfigError(f"sgl.LiteLLM: model {model!r}: {_line(error)}") from None
        known = self._module.get_supported_openai_params(name, provider) or []
        found = {ours for ours, theirs in (_FIELDS | _SAID).items() if theirs in known}
        if "response_format" in known and self._module.supports_response_schema(name, provider):
            found.add("schema")
        if self._module.supports_vision(model):
            found.add("images")
        return frozenset(found | {"extra_body", "system_later"})

    async def fingerprint(self) -> str:
        return f"litellm {self._options['base_url'] or ''} {self.model_name}"

    def _body(self, asked: Asked) -> dict[str, Any]:
        given = asked.given
        begun = structs.replace(asked.prompt, open_text=asked.begun)
        messages = chat_messages(begun, self._template, continues=self.capabilities.continues)
        body: dict[str, Any] = {"messages": messages, "max_tokens": asked.max_tokens}
        body |= {theirs: given[ours] for ours, theirs in _FIELDS.items() if ours in given}
        if asked.stops:
            body["stop"] = list(asked.stops)
        if given.get("return_logprob"):
            top = given.get("top_logprobs_num")
            body |= {"logprobs": True} | ({"top_logprobs": top} if top else {})
        if asked.schema is not None:
            described = {"name": "answer", "schema": asked.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": described}
        if extra := self._fields | given.get("extra_body", {}):
            body["extra_body"] = extra
        return body

    async def _ask(self, body: dict[str, Any], count: int) -> list[Completion]:
        answer = await self._begun(body | ({"n": count} if count > 1 else {}))
        payload = answer.model_dump()
        return answers_of(payload, count, "logprobs" in body, 0.0)

    async def _parts(self, body: dict[str, Any]) -> AsyncGenerator[Completion, None]:
        answer = Answer("logprobs" in body)
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await self._begun(body | asked)
        with self._errors():
            try:
                async for chunk in stream:
                    if answer.take(chunk.model_dump()):
                        yield answer.partial()
            finally:
                await stream.aclose()
        yield answer.completion(0.0)

    async def _begun(self, body: dict[str, Any]) -> Any:
        """litellm's answer or stream; a request that failed before its first byte is sent again."""
        for attempt in itertools.count():
            try:
                with self._errors():
                    return await self._module.acompletion(**self._options, **body)
            except RequestError as error:
                if attempt == self._max_retries or not error.info.retryable:
                    raise
            pause = FIRST_PAUSE_S * 2**attempt
            await asyncio.sleep(pause * random.uniform(1 - JITTER, 1 + JITTER))
        raise AssertionError("it counts without end")

    @contextmanager
    def _errors(self) -> Any:
        """litellm's errors as ours, without the key."""
        module = self._module
        try:
            yield
        except module.ContentPolicyViolationError as error:
            message = f"a filter refused the prompt: {self._said(error)}"
            raise FilterError(message, "content_policy_violation") from None
        except module.ContextWindowExceededError as error:
            raise RequestError(self._said(error), code=CONTEXT_LENGTH) from None
        except RequestError:
            raise
        except Exception as error:  # its own errors have no base that is only theirs
            status = getattr(error, "status_code", None)
            if status is None:
                message = f"the answer is not of the expected form: {self._said(error)}"
                raise RequestError(message, code=INTERNAL) from None
            retryable = status == 429 or status >= 500
            code = code_of(int(status))
            raise RequestError(self._said(error), code=code, retryable=retryable) from None

    def _said(self, error: BaseException) -> str:
        return without_keys(_line(error), self._keys)


def _line(error: BaseException) -> str:
    """The first line of an error's text: litellm appends advice of its own."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
