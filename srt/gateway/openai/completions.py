"""Completions: turns a body into the ring's requests, and their outputs into choices."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from srt.client.generation import GenerateOutput, Request
from srt.files.vocab import Vocab
from srt.gateway.batch import check_prediction, check_size
from srt.gateway.constraint.fields import Given
from srt.gateway.context import GatewayInfo
from srt.gateway.openai.answers import (
    Face,
    NewTokens,
    captures_in,
    ended,
    finish_word,
    steered,
)
from srt.gateway.openai.logprobs import (
    CompletionScores,
    TokenNames,
    joined,
    output_positions,
    prompt_positions,
    ranked_prompt,
)
from srt.gateway.wire.native import shared_fields
from srt.gateway.wire.openai import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    order_fields,
)
from srt.wire.errors import RequestError
from srt.wire.sampling import Scoring


def completion_requests(
    body: CompletionRequest, given: Given | None, info: GatewayInfo
) -> list[Request]:
    """A request for each prompt, at most `info.max_requests` with their samples. RequestError for
    fields that do not go together."""
    _check(body)
    if isinstance(body.prompt, list):
        info.check_entries(body.prompt, "prompt")
    sampling = body.to_params(given, body.constraint_after or "", body.max_tokens)
    sampling = msgspec.structs.replace(sampling, n=body.best_of or body.n)
    many = isinstance(body.prompt, list) and not all(isinstance(p, int) for p in body.prompt)
    values: list[Any] = body.prompt if many else [body.prompt]  # type: ignore[assignment]
    if body.prompt == []:
        raise RequestError(" must not be empty", at="prompt")
    check_size(len(values), sampling.n, info.max_requests, "prompt")
    prediction = "" if body.prediction is None else body.prediction.text
    check_prediction(prediction, len(values))
    if len({type(value) for value in values}) > 1:
        raise RequestError(" must not mix texts and token ids", at="prompt")
    scoring = None
    wants_prompt = _scores_echo(body) or body.prompt_logprobs is not None
    if body.logprobs is not None or wants_prompt or _has_losers(body):
        start = 0 if wants_prompt else -1
        scoring = Scoring(start, max(body.logprobs or 0, body.prompt_logprobs or 0))
    return [
        Request(
            stream=body.stream,
            sampling=sampling,
            text=value if isinstance(value, str) else None,
            input_ids=None if isinstance(value, str) else value,
            scoring=scoring,
            prediction=prediction,
            **shared_fields(body, i if many else None),
            **order_fields(body),
        )
        for i, value in enumerate(values)
    ]


def _check(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of < body.n:
        raise RequestError(f" must be at least n ({body.n})", at="best_of")
    if _has_losers(body) and body.stream:
        raise RequestError(" above n cannot be streamed", at="best_of")
    if body.logprobs is not None and body.token_healing:
        reason = " cannot be combined with logprobs, whose offsets it would shift"
        raise RequestError(reason, at="token_healing")


def _has_losers(body: CompletionRequest) -> bool:
    return body.best_of is not None and body.best_of > body.n


def _scores_echo(body: CompletionRequest) -> bool:
    return body.echo and body.logprobs is not None


class CompletionFace(Face):
    """Writes completions. `samples` requests stand for each of `prompts`, in the same order;
    `prompt_ids` are the prompts' ids, if the answer is to have them: each choice has its own."""

    id_prefix = "cmpl-"
    object = chunk_object = "text_completion"

    def __init__(
        self,
        body: CompletionRequest,
        vocab: Vocab,
        prompts: Sequence[Request],
        prompt_ids: Sequence[list[int]] = (),
    ) -> None:
        self._body = body
        self._samples = body.best_of or body.n
        self._names = TokenNames(vocab, body.return_tokens_as_token_ids)
        self._writers = [
            _CompletionWriter(
                body, vocab, self._names, prompt, prompt_ids[i] if prompt_ids else None
            )
            for i, prompt in enumerate(prompts)
            for _ in range(self._samples)
        ]

    def choices(self, outputs: Sequence[GenerateOutput]) -> Iterator[CompletionChoice | None]:
        """`n` for each prompt: all, or the likeliest ones."""
        count = 0
        for first in range(0, len(outputs), self._samples):
            group = range(first, first + self._samples)
            best = sorted(group, key=lambda i: -_mean_logprob(outputs[i]))
            for i in sorted(best[: self._body.n]) if _has_losers(self._body) else group:
                yield from self._whole(count, i, outputs[i])
                count += 1

    def _whole(
        self, index: int, place: int, output: GenerateOutput
    ) -> Iterator[CompletionChoice | None]:
        for _ in self._writers[place].prepare(output):
            yield None
        whole = msgspec.structs.replace(output, delta=output.text)
        choice = self._writers[place].write(whole, index)
        yield None
        ranked: Any = UNSET
        if self._body.prompt_logprobs is not None:
            ranked = []
            positions = prompt_positions(output, self._body.prompt_logprobs)
            for row in ranked_prompt(positions, self._names):
                ranked.append(row)
                yield None
        yield msgspec.structs.replace(choice, finish_reason=ended(output), prompt_logprobs=ranked)

    def chunk_choices(self, index: int, output: GenerateOutput) -> Iterator[CompletionChoice]:
        """What a snapshot adds. A sample first waits for the prompt's log-probabilities, if any."""
        return self._writers[index].feed(output, index)


class _CompletionWriter:
    """Writes one choice piece by piece; whole answers are one piece."""

    def __init__(
        self,
        body: CompletionRequest,
        vocab: Vocab,
        names: TokenNames,
        prompt: Request,
        prompt_ids: list[int] | None,
    ) -> None:
        self._body = body
        self._vocab = vocab
        self._prompt = prompt
        self._prompt_ids = prompt_ids
        self._num_top = body.logprobs or 0
        self._scores = CompletionScores(
            names,
            self._num_top,
            vocab.hidden_ids if body.skip_special_tokens else frozenset(),
            vocab.begun_by(prompt.input_ids or []),
        )
        self._new = NewTokens(prompt.sampling)
        self._held = ""
        self._begun = False
        self._echoed = ""  # the prompt, if it is shown

    def prepare(self, output: GenerateOutput) -> Iterator[None]:
        """Do the longest work of the whole answer that is written next."""
        if self._num_top:
            prompt = prompt_positions(output, self._num_top) if self._body.echo else []
            new = output_positions(output, 0, len(output.output_ids), self._num_top)
            yield from self._scores.prepare([*prompt, *new])

    def feed(self, output: GenerateOutput, index: int) -> Iterator[CompletionChoice]:
        """What a snapshot of the choice `index` adds, if anything. The prompt's log-probabilities
        come first: text waits for them."""
        if not self._begun and output.finish is None and self._waits(output):
            self._held += output.delta
            return
        choice = self.write(output, index)
        ids = choice.token_ids or choice.prompt_token_ids or choice.token_origins
        tokens = ids or (choice.logprobs and choice.logprobs.tokens)
        if choice.text or choice.finish_reason or tokens:
            yield choice

    def _waits(self, output: GenerateOutput) -> bool:
        """Whether the prompt's part cannot be written yet: its log-probabilities have not come, or
        it ends inside a character, and the text has not begun."""
        if _scores_echo(self._body) and output.prompt_logprobs is None:
            return True
        is_open = self._body.echo and not output.text
        return is_open and self._vocab.begun_by(self._prompt.input_ids or []) != b""

    def write(self, output: GenerateOutput, index: int) -> CompletionChoice:
        """What `output` adds to the choice `index`."""
        text, prompt_ids, logprobs = self._held + output.delta, None, None
        self._held = ""
        if not self._begun:
            self._begun, prompt_ids = True, self._prompt_ids
            text, logprobs = self._begin(text, output)
        start, end = self._new.take(output)
        if self._body.logprobs is not None:
            positions = output_positions(output, start, end, self._num_top)
            new = self._scores.output(positions)
            logprobs = joined(logprobs, new) if logprobs else new
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=finish_word(output),
            matched_stop=None if output.finish is None else output.finish.matched,
            captures=captures_in(output, self._echoed + output.text),
            token_ids=output.output_ids[start:end] if self._body.return_token_ids else UNSET,
            token_origins=output.token_origins[start:end] or UNSET,
            prompt_token_ids=UNSET if prompt_ids is None else prompt_ids,
        )
        return steered(choice, output.finish)

    def _begin(self, text: str, output: GenerateOutput) -> tuple[str, CompletionLogprobs | None]:
        """`text` after the prompt if that is echoed, and the prompt's log-probabilities."""
        if not self._body.echo:
            return text, None
        given, ids = self._prompt.text, self._prompt.input_ids or ()
        skip = self._body.skip_special_tokens
        prompt = self._vocab.decode_prompt(ids, skip) if given is None else given
        begun = self._vocab.begun_by(ids)
        if begun and text[:1].encode().startswith(begun):
            prompt = prompt.removesuffix("\ufffd")  # the text has all of this character
        logprobs = None
        if self._body.logprobs is not None:
            positions = prompt_positions(output, self._num_top)
            logprobs = self._scores.prompt(positions, prompt, given is not None)
        self._echoed = prompt
        return prompt + text, logprobs


def _mean_logprob(output: GenerateOutput) -> float:
    logprobs = output.output_logprobs or []
    return math.fsum(logprobs) / len(logprobs) if logprobs else 0.0
