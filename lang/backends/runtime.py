"""Programs on our own server: `RuntimeEndpoint` at an address, `Runtime` with a server of its own.

One `srt.AsyncClient` per endpoint, opened at its first use on the language's loop. Roles are
rendered here, since a program's turns grow piece by piece; see `lang.chat_template`.
"""

import asyncio
import atexit
import contextlib
import weakref
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lang import loop
from lang.backends.base import BackendDefaults, Capabilities, Completion, Prompt, Scored, Scores
from lang.backends.sampling import CONSTRAINTS, Sampling
from lang.backends.served_model import ServedModel
from lang.backends.shown import with_placeholders
from lang.chat_template import ChatTemplate, chat_template_named, chat_template_of_model
from srt import forked
from srt.client.face import AsyncClient
from srt.client.generation import GenerateOutput
from srt.client.many import patiently
from srt.client.media import MediaFile
from srt.client.programs import ProgramSession
from srt.tasks import all_of
from srt.wire.answer_meta import GENERATE, meta_of
from srt.wire.errors import RequestError, RingError
from srt.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from srt.offline.engine import Engine

CLOSE_TIMEOUT_S = 2.0

# The language's names of SamplingParams' fields, where they differ.
_RENAMED = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
# What goes into the request besides them, or is done here.
_SCORED = ("return_logprob", "logprob_start_len", "top_logprobs_num")
_NOT_SENT = {"n", "timeout_s", "return_text_in_logprobs", *_SCORED}
_PLACE = {"priority", "service_tier", "hints"}  # of a request among others
_REFUSED = {
    name
    for name in {*Sampling.__struct_fields__} - _NOT_SENT
    if _RENAMED.get(name, name) not in SamplingParams.__struct_fields__
}
_open: "weakref.WeakSet[RuntimeEndpoint]" = weakref.WeakSet()


class RuntimeEndpoint(BackendDefaults):
    """A server at `url`, http:// or ipc://DIRECTORY.

    `chat_template` is a registered name or a ChatTemplate; without it the model's name decides.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        chat_template: str | ChatTemplate | None = None,
    ) -> None:
        self.url = url
        self.capabilities = Capabilities(
            score=True,
            images=True,
            constraints=True,
            stop_regex=True,
            refuses_speculation="the server keeps prompts in its cache",
        )
        self._api_key = api_key
        named = isinstance(chat_template, str)
        self._template = chat_template_named(str(chat_template)) if named else chat_template
        self._model = ServedModel(url, api_key)
        self._client: AsyncClient | None = None
        self._opening = asyncio.Lock()
        forked.renew_in_children(self, RuntimeEndpoint._begin_in_child)

    def _begin_in_child(self) -> None:
        """The child's first request connects anew."""
        self._client, self._opening = None, asyncio.Lock()
        _open.discard(self)

    async def client(self) -> AsyncClient:
        """The client, connected; use it on the language's loop."""
        async with self._opening:
            if self._client is None:
                self._client = await AsyncClient(self.url, api_key=self._api_key).__aenter__()
                _open.add(self)
            return self._client

    async def chat_template(self) -> ChatTemplate:
        if not isinstance(self._template, ChatTemplate):
            self._template = chat_template_of_model(await self._model.name())
        return self._template

    # ---- requests ------------------------------------------------------------------------------

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        client = await self.client()
        request = _request(sampling) | await self._prompt_fields(prompt)
        output = await patiently(lambda: client.generate(**request))
        return _completion(output, await self._texts(output, sampling))

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Completion]:
        client = await self.client()
        request = _request(sampling) | await self._prompt_fields(prompt)
        generation = await patiently(lambda: client.submit(stream=True, **request))
        async with contextlib.aclosing(generation):
            async for output in generation:
                yield _completion(output, await self._texts(output, sampling))

    async def _prompt_fields(self, prompt: Prompt) -> dict[str, Any]:
        """The prompt, which must have a token to continue from; else raises RequestError. Raises
        UnsupportedError for images that the model does not take."""
        text, spans = with_placeholders(prompt, await self._placeholders(prompt))
        if text:
            media = [MediaFile(i.kind, (i.data,), num_frames=i.num_frames) for i in prompt.images]
            fields = {"text": text, "literal_spans": spans, "media": media}
            return {name: value for name, value in fields.items() if value}
        bos_id = await self._model.bos_id()
        if bos_id is None:
            reason = "there is none before this call, and the model has no BOS token"
            raise RequestError(f": {reason}", at="text")
        return {"input_ids": [bos_id]}

    async def _placeholders(self, prompt: Prompt) -> Mapping[str, str]:
        """What stands for images in the model's texts. RingError if there are some to be shown and
        the server does not say."""
        told: Mapping[str, str] | None
        if self.url.startswith("ipc:"):
            ring = (await self.client()).ring
            told = ring.media_placeholders if ring and ring.media_kinds is not None else None
        else:
            told = await self._model.media_placeholders()
        if told is None and prompt.images:
            raise RingError("the server has not said yet whether its model sees")
        return told or {}

    async def _texts(self, output: GenerateOutput, sampling: Sampling) -> Mapping[int, str]:
        """The texts of the tokens with log-probabilities, once all of them are there."""
        if output.finish is None or not sampling.return_text_in_logprobs:
            return {}
        ids = {*output.output_ids, *(token for _, token in output.prompt_logprobs or [])}
        for top in [*(output.output_top_logprobs or []), *(output.prompt_top_logprobs or [])]:
            ids.update(token for _, token in top or [])
        return await self._model.texts(ids)

    async def prefetch(self, prefix: str) -> None:
        client = await self.client()
        nothing = SamplingParams(max_new_tokens=0)
        await patiently(lambda: client.generate(prefix, sampling=nothing))

    async def score(
        self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False
    ) -> Scores:
        client = await self.client()
        fields = await self._prompt_fields(prompt)
        output = await patiently(lambda: client.score(continuations=list(continuations), **fields))
        alone: list[tuple[float | None, ...]] = [() for _ in continuations]
        if unconditional:
            alone = await all_of(_alone(client, choice.token_ids) for choice in output.choices)
        made = zip(continuations, output.choices, alone, strict=True)
        return Scores(
            tuple(
                Scored(text, tuple(choice.token_ids), tuple(choice.logprobs), without)
                for text, choice, without in made
            ),
            output.prompt_tokens,
            output.cached_tokens,
        )

    async def open_session(self, idle_s: float, cache_salt: str) -> ProgramSession:
        return await (await self.client()).session(idle_s, cache_salt)

    async def fingerprint(self) -> str:
        return await self._model.fingerprint()

    async def stats(self) -> dict[str, Any]:
        """The scheduler's counters and gauges."""
        return await (await self.client()).stats()

    async def flush_cache(self) -> None:
        await (await self.client()).flush_cache()

    async def aclose(self) -> None:
        async with self._opening:
            client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    def get_model_name(self) -> str:
        """The served model's name, or over HTTP its path."""
        return loop.call(self._model.name())

    def get_server_info(self) -> dict[str, Any]:
        """`stats` for programs without a loop."""
        return loop.call(self.stats())


class Runtime:
    """A server of this program's own: `Runtime(model="smollm2", max_total_tokens=8192)`.

    Arguments are those of `python -m srt.launch` (`model_path` is SGLang's name for `model`).
    It starts at its first use, or with `start`.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        model_path: str | None = None,
        chat_template: str | ChatTemplate | None = None,
        **args: Any,
    ) -> None:
        self._arguments = {"model": model_path or model, **args}
        self._chat_template = chat_template
        self._engine: Engine | None = None
        self._endpoint: RuntimeEndpoint | None = None

    @property
    def endpoint(self) -> RuntimeEndpoint:
        """The server as a back end."""
        if self._endpoint is None:
            self._endpoint = endpoint_of(self.engine, self._chat_template)
        return self._endpoint

    @property
    def engine(self) -> "Engine":
        """The server itself. Raises ConfigError if it cannot start."""
        if self._engine is None:
            from srt.offline.engine import Engine

            self._engine = Engine(**self._arguments)
        return self._engine

    @property
    def url(self) -> str:
        """The server's ipc:// address."""
        return self.endpoint.url

    def start(self) -> "Runtime":
        """Start the server now."""
        _ = self.endpoint
        return self

    def shutdown(self) -> None:
        """End the server. May be called more than once."""
        endpoint, self._endpoint = self._endpoint, None
        engine, self._engine = self._engine, None
        if endpoint is not None:
            endpoint.close()
        if engine is not None:
            engine.close()

    def __enter__(self) -> "Runtime":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.shutdown()


def endpoint_of(
    engine: "Engine", chat_template: str | ChatTemplate | None = None
) -> RuntimeEndpoint:
    """An endpoint at an `srt.Engine`."""
    return RuntimeEndpoint(f"ipc://{engine.directory}", chat_template=chat_template)


def _request(sampling: Sampling) -> dict[str, Any]:
    scored = {
        "return_logprob": sampling.return_logprob,
        "logprob_start_len": sampling.logprob_start_len,
        "top_logprobs": sampling.top_logprobs_num,
    }
    place = {name: getattr(sampling, name) for name in sampling.sets_any(_PLACE)}
    fields = place | (scored if sampling.sets_any(_SCORED) else {})
    return {"sampling": params_of(sampling, elsewhere=_PLACE), **fields}


def params_of(sampling: Sampling, elsewhere: Collection[str] = ()) -> dict[str, Any]:
    """SamplingParams' fields, those that are set; other parameters are refused, unless they are
    `elsewhere` in the request. Constrained texts are closed unless that is turned off, and no
    others."""
    given = sampling.set_fields().difference(elsewhere)
    if not given.isdisjoint(_REFUSED):
        sampling.refuse(_REFUSED.difference(elsewhere), "the runtime")
    values = {_RENAMED.get(name, name): getattr(sampling, name) for name in given - _NOT_SENT}
    if not values.keys().isdisjoint(CONSTRAINTS):
        values.setdefault("close", True)
    elif values.get("close"):
        del values["close"]
    if "logit_bias" in values:
        values["logit_bias"] = _token_biases(sampling.logit_bias)
    return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}


def _token_biases(given: Mapping[str, float]) -> dict[int, float]:
    """By token id; OpenAI's field of the same name has the ids as texts."""
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError:
        raise RequestError(" must have token ids as keys", at="logit_bias") from None


def _completion(output: GenerateOutput, texts: Mapping[int, str]) -> Completion:
    meta: dict[str, Any] = {
        "id": output.rid,
        "output_ids": output.output_ids,
    } | meta_of(output, GENERATE)
    if output.captures is not None:
        meta["captures"] = [msgspec.to_builtins(capture) for capture in output.captures]
    if output.output_logprobs is not None:
        pairs = zip(output.output_logprobs, output.output_ids, strict=True)
        meta["output_token_logprobs"] = _rows(pairs, texts)
    for name, tops in (
        ("output_top_logprobs", output.output_top_logprobs),
        ("input_top_logprobs", output.prompt_top_logprobs),
    ):
        if tops is not None:
            meta[name] = [top and _rows(top, texts) for top in tops]
    if output.prompt_logprobs is not None:
        meta["input_token_logprobs"] = _rows(output.prompt_logprobs, texts)
    finish = output.finish
    return Completion(
        output.text,
        None if finish is None else finish.type,
        None if finish is None else finish.matched,
        output.prompt_tokens,
        output.cached_tokens,
        output.completion_tokens,
        meta,
    )


def _rows(pairs: Iterable[tuple[float | None, int]], texts: Mapping[int, str]) -> list[list[Any]]:
    return [[value, token, texts.get(token)] for value, token in pairs]


async def _alone(client: AsyncClient, ids: Sequence[int]) -> tuple[float | None, ...]:
    """The log-probabilities of tokens without any prompt."""
    output = await patiently(
        lambda: client.generate(
            input_ids=list(ids),
            sampling=SamplingParams(max_new_tokens=0),
            return_logprob=True,
            logprob_start_len=0,
        )
    )
    return tuple(value for value, _ in output.prompt_logprobs or [])


def _close_all() -> None:
    """Say goodbye to the servers, so that they need not wait for leases to expire."""
    for endpoint in list(_open):
        with contextlib.suppress(Exception):
            loop.submit(endpoint.aclose()).result(CLOSE_TIMEOUT_S)


atexit.register(_close_all)
