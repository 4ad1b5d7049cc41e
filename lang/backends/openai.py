"""Programs on any server with the OpenAI routes: completion models and chat models.

What such a server cannot do is refused by name. A select is exact where completions echo their
prompt with log-probabilities (`score`); else its answer is constrained to the choices, or free, and
the closest choice is taken. The meta info's `select_method` says which of these two.
"""

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from lang.backends.base import BackendDefaults, Capabilities, Completion, Prompt, Scores
from lang.backends.features import COMPATIBLE, FEATURES, features_of
from lang.backends.features import OPENAI as OPENAI_FEATURES
from lang.backends.openai_answer import Answer, answers_of, scores_of
from lang.backends.openai_host import Azure, Connection, azure_host, openai_host
from lang.backends.openai_request import (
    DIALECTS,
    Dialect,
    chat_messages,
    choice_fields,
    continued_fields,
    refusal_of,
    sampling_fields,
    select_sampling,
    stream_fields,
    strict_of,
)
from lang.backends.reading import Reading
from lang.backends.sampling import Sampling
from lang.backends.schemas.strict import Strict
from lang.chat_template import ChatTemplate, chat_template_named, chat_template_of_model
from lang.errors import UnsupportedError
from srt.wire.errors import ConfigError

if TYPE_CHECKING:
    import httpx2

    from lang.backends.openai_http import OpenAIHttp

_COMPLETION_MODELS = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")

SelectMethod = Literal["constrained", "closest"]


class TokenUsage(Struct):
    """Tokens that a back end has used so far, as its server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt's
    reasoning_tokens: int = 0  # of the completion's

    def reset(self) -> None:
        """Count from zero again."""
        self.prompt_tokens = self.completion_tokens = 0
        self.cached_tokens = self.reasoning_tokens = 0

    def add(self, completion: Completion) -> Completion:
        """Count a completion's tokens; returns it."""
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens
        self.cached_tokens += completion.cached_tokens
        self.reasoning_tokens += completion.meta.get("reasoning_tokens", 0)
        return completion


class OpenAI(BackendDefaults):
    """A model behind OpenAI's routes.

    `is_chat_model` None: all are except OpenAI's three completion models. `dialect` says whose
    fields the server takes besides OpenAI's: "openai" none, "sglang" (srt's too), "vllm"; None is
    "openai" with the older field `max_tokens`, unless the server is OpenAI's own. In that one,
    schemas and patterns go out as strict mode takes them, and their answers are taken back.
    Texts of constrained gens are checked here, since a server may ignore what it does not know.
    `echo_logprobs` says that completions take `echo` with `logprobs`, which makes selects exact
    (the default for vLLM). `select` None: constrained where the dialect can, else closest. Address
    and key default to the environment's OPENAI_BASE_URL and OPENAI_API_KEY. With `is_azure` the
    model is a deployment of a resource of Azure. `default_headers` go with each request,
    `extra_body` into each body. What the model takes is known by its name, less `without`, and
    `also`: names of `lang.backends.features`. Raises ConfigError for what cannot work.
    """

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: str | ChatTemplate | None = None,
        is_azure: bool = False,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        organization: str | None = None,
        project: str | None = None,
        azure_endpoint: str | None = None,
        azure_deployment: str | None = None,
        api_version: str | None = None,
        default_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        dialect: Dialect | None = None,
        echo_logprobs: bool | None = None,
        select: SelectMethod | None = None,
        without: Iterable[str] = (),
        also: Iterable[str] = (),
        timeout_s: float = 600.0,
        max_retries: int = 3,
        transport: "httpx2.AsyncBaseTransport | None" = None,
    ) -> None:
        self.model_name = model_name
        self.is_chat = model_name not in _COMPLETION_MODELS
        if is_chat_model is not None:
            self.is_chat = is_chat_model
        self.dialect: Dialect = dialect or "openai"
        _check(self.dialect, select)
        if is_azure:
            azure = Azure(azure_endpoint, azure_deployment, api_version)
            host = azure_host(model_name, azure, api_key, default_headers)
        elif azure_endpoint or azure_deployment or api_version:
            raise ConfigError("azure_endpoint, azure_deployment and api_version need is_azure=True")
        else:
            host = openai_host(base_url, api_key, organization, project, default_headers)
        self.token_usage = TokenUsage()
        table = OPENAI_FEATURES if host.is_openai else COMPATIBLE
        self._features = features_of(table, model_name, without, also)
        echoes = self.dialect == "vllm" if echo_logprobs is None else echo_logprobs
        self.capabilities = Capabilities(
            chat_only=self.is_chat,
            score=echoes and not self.is_chat,
            images=self.is_chat and "images" in self._features,
            constraints=True,
            enforces=False,
            several="several" in self._features,
            continues=self.is_chat and self.dialect != "openai",
            token_texts=self.dialect != "openai" or host.is_openai,
            refuses_speculation=refusal_of(model_name),
        )
        self._select = select
        self._template = self._chat_template(chat_template)
        self._is_openai = dialect == "openai" or (dialect is None and host.is_openai)
        self._connection = Connection(
            host,
            extra_body or {},
            timeout_s=timeout_s,
            max_retries=max_retries,
            transport=transport,
        )

    def _chat_template(self, template: str | ChatTemplate | None) -> ChatTemplate:
        """A chat model has its own template; the text of its programs is for people to read."""
        if isinstance(template, ChatTemplate):
            return template
        if template is not None:
            return chat_template_named(template)
        return ChatTemplate() if self.is_chat else chat_template_of_model(self.model_name)

    @property
    def base_url(self) -> str:
        """The address that paths of the API are appended to."""
        return self._connection.host.base_url

    async def chat_template(self) -> ChatTemplate:
        return self._template

    async def fingerprint(self) -> str:
        return f"{self.base_url} {self.model_name}"

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        body, reading = self._asked(prompt, sampling)
        return reading.whole(await self._complete(body))

    async def samples(self, prompt: Prompt, sampling: Sampling, count: int) -> list[Completion]:
        body, reading = self._asked(prompt, sampling)
        begun, has_logprobs = time.monotonic(), "logprobs" in body
        payload = await self._http().post(self._path, body | {"n": count})
        found = answers_of(payload, count, has_logprobs, time.monotonic() - begun)
        return [reading.whole(self._counted(each)) for each in found]

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Completion]:
        body, reading = self._asked(prompt, sampling)
        body |= stream_fields(sampling, self.dialect)
        begun, answer = time.monotonic(), Answer("logprobs" in body)
        async with aclosing(self._http().events(self._path, body)) as events:
            async for event in events:
                if answer.take(event):
                    so_far = answer.partial()
                    if reading.is_over(so_far.text):
                        yield reading.whole(self._counted(so_far))
                        return
                    try:
                        yield msgspec.structs.replace(so_far, text=reading.partial(so_far.text))
                    except GeneratorExit:  # left early: what the server has counted until then
                        self._counted(so_far)
                        raise
        yield reading.whole(self._counted(answer.completion(time.monotonic() - begun)))

    async def score(
        self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False
    ) -> Scores:
        """Requests an echo of each text. Token ids are not given: -1 stands for them."""
        if not self.capabilities.score:
            return await super().score(prompt, continuations, unconditional=unconditional)
        if unconditional:
            reason = "the completions route gives no log-probabilities of tokens by themselves"
            raise UnsupportedError("choices_method", reason)
        texts = [prompt.text + text for text in ("", *continuations)]
        texts = texts if prompt.text else texts[1:]
        body = self._prompt_fields(prompt) | {"prompt": texts, "max_tokens": 0, "temperature": 0}
        payload = await self._http().post(self._path, body | {"echo": True, "logprobs": 1})
        scores = scores_of(payload, continuations)
        self.token_usage.prompt_tokens += (payload.get("usage") or {}).get("prompt_tokens") or 0
        return scores

    async def select(
        self, prompt: Prompt, choices: Sequence[str], sampling: Sampling
    ) -> Completion:
        fields = choice_fields(choices, self.dialect, self.is_chat)
        if self.dialect == "openai" and "schema" not in self._features:
            fields = None
        thinks = self.is_chat and self._is_openai and "reasoning_effort" in self._features
        features = self._features if self.dialect == "openai" else FEATURES
        asked = select_sampling(choices, sampling, features, thinks=thinks)
        body = self._prompt_fields(prompt) | self._sampling_fields(asked)
        if self._select == "closest" or (self._select is None and fields is None):
            answer = await self._complete(body)
            return with_choice(answer, closest(answer.text, choices), "closest")
        if fields is None:
            raise UnsupportedError("select", "these completions cannot be constrained to choices")
        answer = await self._complete(body | fields)
        text = chosen(answer.text) if self.dialect == "openai" else answer.text
        if text is None or text not in choices:
            reason = f"the answer {answer.text!r} (finish {answer.finish!r}) is none of them; "
            reason += f"if the server ignores {', '.join(fields)}, name its dialect, "
            reason += "or use select='closest'"
            raise UnsupportedError("choices", reason)
        return with_choice(answer, text, "constrained")

    def _asked(self, prompt: Prompt, sampling: Sampling) -> tuple[dict[str, Any], Reading]:
        """The body of a gen, and how its answer is read."""
        is_strict = self.dialect == "openai" and self.is_chat
        strict = None
        if is_strict:
            strict = strict_of(sampling, self._features, is_openai=self._is_openai)
        stops: tuple[str, ...] = ()
        if is_strict and (
            (strict is not None and not strict.is_plain) or "stop" not in self._features
        ):
            # They would be found in the JSON around the value, or are not known to the model.
            stops, sampling = sampling.stop, msgspec.structs.replace(sampling, stop=())
        body = self._prompt_fields(prompt) | self._sampling_fields(sampling, strict)
        return body, Reading(strict, stops)

    def _sampling_fields(self, sampling: Sampling, strict: Strict | None = None) -> dict[str, Any]:
        features = self._features if self.is_chat and self.dialect == "openai" else None
        fields = sampling_fields(sampling, self.dialect, self.is_chat, features, strict)
        if self.is_chat and self._is_openai:
            fields["max_completion_tokens"] = fields.pop("max_tokens")
        return self._connection.fields | fields

    def _prompt_fields(self, prompt: Prompt) -> dict[str, Any]:
        if self.is_chat:
            continues = self.capabilities.continues
            messages = chat_messages(prompt, self._template, continues=continues)
            fields = continued_fields(prompt, self.dialect)
            return {"model": self.model_name, "messages": messages, **fields}
        if prompt.images or any(message.images for message in prompt.messages):
            raise UnsupportedError("image", "completions take text only")
        return {"model": self.model_name, "prompt": prompt.text}

    async def _complete(self, body: dict[str, Any]) -> Completion:
        begun, answer = time.monotonic(), Answer("logprobs" in body)
        answer.take(await self._http().post(self._path, body))
        return self._counted(answer.completion(time.monotonic() - begun))

    def _counted(self, completion: Completion) -> Completion:
        return self.token_usage.add(completion)

    @property
    def _path(self) -> str:
        return "/chat/completions" if self.is_chat else "/completions"

    def _http(self) -> "OpenAIHttp":
        return self._connection.http()

    async def aclose(self) -> None:
        await self._connection.aclose()


def _check(dialect: str, select: str | None) -> None:
    if dialect not in DIALECTS:
        raise ConfigError(f"dialect {dialect!r}: expected one of {DIALECTS}")
    if select not in (None, "constrained", "closest"):
        raise ConfigError(f"select {select!r}: expected 'constrained' or 'closest'")


def closest(answer: str, choices: Sequence[str]) -> str:
    """The choice that a free answer means.

    The longest choice that it begins with, blanks, quotes and case aside; else the one most like
    its beginning; among equals, the first.
    """
    said = _bare(answer)
    begun_with = [choice for choice in choices if _bare(choice) and said.startswith(_bare(choice))]
    if begun_with:
        return max(begun_with, key=lambda choice: len(_bare(choice)))

    def likeness(choice: str) -> float:
        bare = _bare(choice)
        return SequenceMatcher(None, said[: len(bare)], bare, autojunk=False).ratio()

    return max(choices, key=likeness)


def _bare(text: str) -> str:
    return text.strip(" \t\n\"'`*").casefold()


def chosen(text: str) -> str | None:
    """The choice in the answer `{"choice": ...}`; None for any other answer."""
    try:
        return msgspec.json.decode(text, type=dict[str, str]).get("choice")
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def with_choice(answer: Completion, choice: str, method: SelectMethod) -> Completion:
    meta = answer.meta | {"select_method": method, "answer": answer.text}
    return msgspec.structs.replace(answer, text=choice, meta=meta)
