"""`LLM`: offline generation with vLLM's names and shapes.

    llm = LLM("smollm2")
    for output in llm.generate(["One, two,", "Red, green,"], SamplingParams(max_tokens=8)):
        print(output.prompt, output.outputs[0].text)

It runs an `Engine` (`llm.engine`), which can be used for everything else.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

from msgspec import Struct, field

from srt.client.generation import GenerateOutput, Request
from srt.client.many import Job, key_of, run_jobs
from srt.client.media import opened
from srt.client.message_parts import with_media
from srt.client.request_fields import checked_request
from srt.files.vocab import Vocab, served_vocab
from srt.offline import multi_modal
from srt.offline.engine import Engine
from srt.offline.progress import progress_bar
from srt.wire.answer_meta import AnswerMeta, facts
from srt.wire.constraint import Capture
from srt.wire.errors import RequestError
from srt.wire.messages import ChatOptions
from srt.wire.sampling import CommonSampling

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "structural_tag", "json_object")


class StructuredOutputsParams(Struct, frozen=True, kw_only=True):
    """What the output must match; exactly one of these. `json` is a schema (text or dict).
    `disable_additional_properties` is that of `srt.SamplingParams`."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    json_object: bool | None = None
    disable_additional_properties: bool | None = None

    def fields(self) -> dict[str, Any]:
        """The constraint as a field of `srt.SamplingParams`. ValueError unless one is given."""
        values = {name: getattr(self, name) for name in _CONSTRAINTS}
        given = {name: value for name, value in values.items() if value not in (None, False)}
        if len(given) != 1:
            raise ValueError(f"structured_outputs takes exactly one of {', '.join(_CONSTRAINTS)}")
        ((name, value),) = given.items()
        if name == "json_object":
            return {"json_schema": '{"type": "object"}'}
        names = {"json": "json_schema", "choice": "choices", "grammar": "ebnf"}
        name, closed = names.get(name, name), self.disable_additional_properties
        return {name: value} | ({} if closed is None else {"disable_additional_properties": closed})


class SamplingParams(CommonSampling, frozen=True, kw_only=True):
    """vLLM's sampling parameters and defaults, and all that `CommonSampling` has; see
    `srt.SamplingParams` for what they do. None is the default of each.

    `logprobs` k asks for the k most likely tokens and the chosen one at each place of the output,
    `prompt_logprobs` at each of the prompt. `top_k` 0 and -1 are off.
    """

    top_k: int | None = None
    n: int = 1
    stop: str | list[str] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None

    def request(self) -> dict[str, Any]:
        """The fields of an `srt` request that ask for the same. Raises RequestError."""
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(self, name) or 0) < 0:
                raise RequestError(" must be 0 or more", at=name)
        given = {name: value for name, value in self.shared().items() if value is not None}
        sampling = given | {
            "n": self.n,
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop or [],
            "max_new_tokens": self.max_tokens,
            "min_new_tokens": self.min_tokens,
            "no_stop_trim": self.include_stop_str_in_output,
        }
        if self.top_k == 0:
            sampling["top_k"] = -1
        if self.structured_outputs is not None:
            sampling |= self.structured_outputs.fields()
        return {
            "sampling": sampling,
            "return_logprob": self.logprobs is not None or self.prompt_logprobs is not None,
            "top_logprobs": max(self.logprobs or 0, self.prompt_logprobs or 0),
            "logprob_start_len": -1 if self.prompt_logprobs is None else 0,
        }


class Logprob(Struct, frozen=True):
    """A token's log-probability. `rank` counts from 1; None if it is not among those asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


class CompletionOutput(
    AnswerMeta, frozen=True, kw_only=True, array_like=False, omit_defaults=False
):
    """One completion. `logprobs` has, per token, the log-probabilities by token id;
    `stop_reason` is the stop string or id that ended it, None for the model's own end; `captures`
    are the parts of the text that its constraint names. It also has all facts of `AnswerMeta`."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None
    captures: list[Capture] | None = None


class RequestOutput(Struct, frozen=True, kw_only=True):
    """A prompt and its completions. `prompt_logprobs` begins with None, for the first token. Of a
    prompt that shows media, `prompt_token_ids` are those that were given: only the server knows the
    others."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True
    num_cached_tokens: int = 0


class LLM:
    """A model for this program alone. Arguments are those of `srt.Engine`.

    Use it in a `with` block or `close` it; it also ends with the program.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **args: Any) -> None:
        self.engine = Engine(model, **args)
        try:
            self._vocab: Vocab = served_vocab(self.engine.args)
        except BaseException:
            self.engine.close()
            raise
        self._served = 0

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server. May be called more than once."""
        self.engine.close()

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters that are used if none are given."""
        return SamplingParams()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete each prompt: a text, token ids, or a dict of `prompt` or `prompt_token_ids`,
        which may have `multi_modal_data` (see `srt.offline.multi_modal`).

        `sampling_params` are one for all or one for each; `use_tqdm` shows a progress bar. Raises
        RequestError if a prompt or parameter is refused; nothing is returned then.
        """
        return self._run(_several(prompts), sampling_params, self._read, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a chat, or each of several, through the model's template. A message's content may
        be a list of parts, some of which show pictures or videos."""
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        chats: list[Any] = [messages] if is_one else list(messages)
        options = ChatOptions(
            json.dumps(chat_template_kwargs) if chat_template_kwargs else "",
            continue_final_message,
            add_generation_prompt and not continue_final_message,
        )

        async def read(chat: Any) -> _Read:
            messages = [dict(message) for message in chat]
            shown = await with_media({"messages": messages, "chat": options})
            if shown.request.get("media"):
                return _Read(None, [], shown.request)
            ids = await self.engine.client.tokenize(messages=messages, chat=options)
            return _Read(None, ids, {"input_ids": ids})

        return self._run(chats, sampling_params, read, use_tqdm)

    # ---- one batch -----------------------------------------------------------------------------

    def _run(
        self,
        prompts: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        read: "Reader",
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = _each(sampling_params, len(prompts))
        with progress_bar(len(prompts), "prompts", shown=use_tqdm) as bar:
            return self.engine.call(self._batch(prompts, params, read, bar.update))

    async def _batch(
        self,
        prompts: Sequence[Any],
        params: Sequence[SamplingParams],
        read: "Reader",
        on_done: Callable[[], Any],
    ) -> list[RequestOutput]:
        known: dict[int, tuple[str | None, list[int]]] = {}

        async def make(i: int) -> Request:
            text, ids, fields = await read(prompts[i])
            known[i] = text, ids
            return checked_request({**fields, **params[i].request()})

        jobs = [
            Job(_key_of(prompt), params[i].n, partial(make, i)) for i, prompt in enumerate(prompts)
        ]
        results = await run_jobs(self.engine.client.transport, jobs, on_done)
        return [
            self._output(*known[i], param, samples)
            for i, (param, samples) in enumerate(zip(params, results, strict=True))
        ]

    async def _read(self, prompt: Prompt) -> "_Read":
        text, ids, media, names = _parts_of(prompt)
        if media:
            prompted = {"text": text} if ids is None else {"input_ids": ids}
            return _Read(text, ids or [], {**prompted, "media": await opened(media, names)})
        if ids is None:
            ids = await self.engine.client.tokenize(text)
        return _Read(text, ids, {"input_ids": ids})

    # ---- results -------------------------------------------------------------------------------

    def _output(
        self, text: str | None, ids: list[int], params: SamplingParams, samples: list[Any]
    ) -> RequestOutput:
        self._served += 1
        first: GenerateOutput = samples[0]
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            chosen = [(token, value) for value, token in first.prompt_logprobs or []]
            tops = first.prompt_top_logprobs or [None] * len(chosen)
            prompt_logprobs = self._logprobs(chosen, tops, params.prompt_logprobs)
        return RequestOutput(
            request_id=str(self._served - 1),
            prompt=text,
            prompt_token_ids=ids,
            prompt_logprobs=prompt_logprobs,
            outputs=[self._completion(i, sample, params) for i, sample in enumerate(samples)],
            num_cached_tokens=first.cached_tokens,
        )

    def _completion(
        self, index: int, sample: GenerateOutput, params: SamplingParams
    ) -> CompletionOutput:
        values, logprobs = sample.output_logprobs, None
        if params.logprobs is not None and values is not None:
            chosen = list(zip(sample.output_ids, values, strict=True))
            tops: Sequence[Any] = sample.output_top_logprobs or [None] * len(chosen)
            logprobs = [row or {} for row in self._logprobs(chosen, tops, params.logprobs)]
        finish = sample.finish
        matched = None if finish is None else finish.matched
        return CompletionOutput(
            index=index,
            text=sample.text,
            token_ids=sample.output_ids,
            cumulative_logprob=None if logprobs is None else sum(values or ()),
            logprobs=logprobs,
            finish_reason=None if finish is None else finish.type,
            stop_reason=None if matched in self._vocab.eos_ids else matched,
            captures=sample.captures,
            **facts(sample),
        )

    def _logprobs(
        self,
        chosen: Sequence[tuple[int, float | None]],
        tops: Sequence[Sequence[tuple[float, int]] | None],
        count: int,
    ) -> list[dict[int, Logprob] | None]:
        """Per token: the `count` most likely and the chosen one; None where there are none."""
        rows: list[dict[int, Logprob] | None] = []
        for (token, value), top in zip(chosen, tops, strict=True):
            if value is None:
                rows.append(None)
                continue
            ranked = {
                other: Logprob(logprob, rank, self._text(other))
                for rank, (logprob, other) in enumerate((top or ())[:count], start=1)
            }
            rows.append({token: Logprob(value, None, self._text(token))} | ranked)
        return rows

    def _text(self, token: int) -> str:
        return self._vocab.decode([token], skip_special_tokens=False)


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    """One prompt or several as a list."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    several: list[Any] = list(prompts)
    if several and all(isinstance(token, int) for token in several):
        return [several]
    return several


class _Read(NamedTuple):
    """A prompt's text, if it has one, its ids, if they are known, and the fields of a request."""

    text: str | None
    ids: list[int]
    fields: Mapping[str, Any]


Reader = Callable[[Any], Awaitable[_Read]]


class _Parts(NamedTuple):
    """A prompt's text and its ids, at least one of them, and what it shows, with names."""

    text: str | None
    ids: list[int] | None = None
    media: Sequence[Any] = ()
    names: Sequence[str] = ()


def _parts_of(prompt: Prompt) -> _Parts:
    """Raises RequestError."""
    if isinstance(prompt, str):
        return _Parts(prompt)
    if not isinstance(prompt, Mapping):
        return _Parts(None, list(prompt))
    for key in sorted(prompt.keys() - {"prompt", "prompt_token_ids", multi_modal.FIELD}):
        raise RequestError(f"a prompt's {key!r} is not supported", param=key)
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise RequestError("a prompt needs prompt or prompt_token_ids", param="prompt")
    data = prompt.get(multi_modal.FIELD)
    media, names = multi_modal.media_of(data) if data is not None else ((), ())
    return _Parts(text, None if ids is None else list(ids), media, names)


def _key_of(prompt: Any) -> tuple[Any, ...]:
    """The sorting key of a prompt or a chat. Raises RequestError."""
    is_chat = not isinstance(prompt, str | Mapping) and isinstance(next(iter(prompt), 0), Mapping)
    if is_chat:
        return key_of(None, messages=prompt)
    text, ids, media, _ = _parts_of(prompt)
    return key_of(text, ids, media=media)


def _each(
    given: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams]:
    """The parameters for each of `count` prompts. Raises ValueError, TypeError."""
    if given is None:
        given = SamplingParams()
    if isinstance(given, SamplingParams):
        return [given] * count
    if isinstance(given, (CommonSampling, Mapping)):
        raise TypeError("LLM takes srt.llm.SamplingParams, which has vLLM's names")
    if len(given) != count:
        raise ValueError(f"{len(given)} sampling_params for {count} prompts")
    return given
