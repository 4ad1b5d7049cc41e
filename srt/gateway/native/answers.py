"""Writes the answers of /generate: snapshots as SGLang's response fields."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from srt.client.generation import OF_IDS, OF_PROMPT, GenerateOutput, Request
from srt.files.vocab import Vocab
from srt.gateway.http.turns import in_turns
from srt.gateway.openai.answers import NewTokens, captures_in, steering
from srt.gateway.wire.native import FinishReason, LogprobEntry, MetaInfo, NativeResponse
from srt.wire.answer_meta import GENERATE, meta_of
from srt.wire.messages import JUMP_WINDOW_TOKENS, Finish
from srt.wire.sampling import SamplingParams, Scoring

T = TypeVar("T")
_NOTHING = GenerateOutput(rid="")
_encode = msgspec.json.Encoder().encode
_SETTLED_AT_ONCE = 64  # rows


class NativeAnswers:
    """Writes the answers to `requests`, which have `samples` answers each, prompt after prompt.

    `prompt_ids` are the ids of each prompt, if the answers are to have them; `texts` the vocabulary
    from which log-probabilities get the texts of their tokens, if they are to have any.
    `incremental` events of a stream have what is new since the one before.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        samples: int,
        prompt_ids: Sequence[list[int]],
        texts: Vocab | None,
        incremental: bool = False,
    ) -> None:
        self._samples = samples
        self._prompt_ids = prompt_ids
        # What each answer's last event made known.
        self._sent = [_NOTHING] * (samples * len(requests)) if incremental else []
        self._logprobs: list[_Logprobs | None] = []
        for request in requests:
            inputs = [_Column(), _Column(), _Column()]  # the samples share them
            self._logprobs += [
                _Logprobs(request.sampling, request.scoring, texts, inputs)
                if request.scoring is not None
                else None
                for _ in range(samples)
            ]

    async def whole(self, index: int, output: GenerateOutput, latency_s: float) -> NativeResponse:
        """The finished answer number `index`, made in turns with other work."""
        logprobs = self._logprobs[index]
        if logprobs is not None:
            await in_turns(logprobs.settle(output))
        return self.response(index, output, latency_s)

    def response(self, index: int, output: GenerateOutput, latency_s: float) -> NativeResponse:
        """The answer number `index`, so far."""
        start: int | UnsetType = UNSET
        captures, logprobs = captures_in(output, output.text), self._logprobs[index]
        prompt_ids = self._prompt_ids[index // self._samples] if self._prompt_ids else UNSET
        if self._sent:
            sent, self._sent[index] = self._sent[index], output
            start = _num_common(sent, output)
            output = _since(output, sent, start)
            logprobs = logprobs and logprobs.of_a_part()
            prompt_ids = prompt_ids if sent is _NOTHING else UNSET
        meta = MetaInfo(
            id=output.rid,
            finish_reason=finish_reason(output.finish, output.completion_tokens),
            e2e_latency=latency_s,
            captures=captures,
            **meta_of(output, GENERATE),
        )
        return NativeResponse(
            text=output.text,
            output_ids=output.output_ids,
            meta_info=meta if logprobs is None else logprobs.added_to(meta, output),
            prompt_token_ids=prompt_ids,
            start=start,
        )


def _num_common(sent: GenerateOutput, now: GenerateOutput) -> int:
    """How many of the ids sent stay: a jump may replace the last ones."""
    before, after = sent.output_ids, now.output_ids
    old, new = sent.output_logprobs or before, now.output_logprobs or after
    count = max(0, len(before) - JUMP_WINDOW_TOKENS)
    if before[:count] != after[:count] or old[:count] != new[:count]:  # several jumps since then
        count = 0
    for pair, other in zip(
        zip(before[count:], old[count:], strict=False),
        zip(after[count:], new[count:], strict=False),
        strict=False,
    ):
        if pair != other:
            break
        count += 1
    return count


def _since(now: GenerateOutput, sent: GenerateOutput, start: int) -> GenerateOutput:
    """What `sent` lacks: the text after its own, and from `start` on all that ids have."""
    lists = {name: getattr(now, name) for name in OF_IDS}
    part = {name: rows and rows[start:] for name, rows in lists.items()}
    for name in OF_PROMPT:  # which come with the first sample, perhaps after an event of another
        if len(getattr(sent, name) or ()) == len(getattr(now, name) or ()):
            part[name] = None
    origins = now.token_origins[start:]
    return replace(now, text=now.text[len(sent.text) :], token_origins=origins, **part)


class _Column:
    """A list of log-probabilities that every event of a stream has as a whole: the entries of the
    rows that cannot change any more are made once. Those that are lists are encoded then."""

    def __init__(self) -> None:
        self._settled: list[Any] = []

    def entries(self, rows: Sequence[T], settled: int, entry: Callable[[T], Any]) -> list[Any]:
        """The entries of all rows, of which the first `settled` will not change."""
        for _ in self.settle(rows[:settled], entry):
            pass
        return self._settled + [entry(row) for row in rows[len(self._settled) :]]

    def settle(self, rows: Sequence[T], entry: Callable[[T], Any]) -> Iterator[None]:
        """Make the entries of `rows`, which will not change, some at a time."""
        while len(self._settled) < len(rows):
            start = len(self._settled)
            self._settled += [entry(row) for row in rows[start : start + _SETTLED_AT_ONCE]]
            yield


class _Logprobs:
    """The log-probabilities of one answer. `inputs` are the columns of the prompt's."""

    def __init__(
        self,
        sampling: SamplingParams,
        scoring: Scoring,
        texts: Vocab | None,
        inputs: list[_Column],
    ) -> None:
        self._scoring = scoring
        self._texts = texts
        self._new = NewTokens(sampling)
        self._inputs = inputs
        self._outputs = [_Column(), _Column(), _Column()]

    def of_a_part(self) -> "_Logprobs":
        """The writer of an event that repeats nothing."""
        made = copy(self)
        made._inputs, made._outputs = ([_Column(), _Column(), _Column()] for _ in range(2))
        return made

    def settle(self, output: GenerateOutput) -> Iterator[None]:
        """Make the entries of a finished answer, some at a time."""
        outputs = list(zip(output.output_logprobs or [], output.output_ids, strict=False))
        yield from self._inputs[0].settle(output.prompt_logprobs or [], self._chosen)
        yield from self._outputs[0].settle(outputs, self._chosen)
        if self._scoring.top:
            yield from self._inputs[1].settle(output.prompt_top_logprobs or [], self._top)
            yield from self._outputs[1].settle(output.output_top_logprobs or [], self._top)
        if self._scoring.ids:
            yield from self._inputs[2].settle(output.prompt_id_logprobs or [], self._named)
            yield from self._outputs[2].settle(output.output_id_logprobs or [], self._named)

    def added_to(self, meta: MetaInfo, output: GenerateOutput) -> MetaInfo:
        """`meta` with all that is known of them."""
        _, settled = self._new.take(output)
        inputs = output.prompt_logprobs or []
        outputs = list(zip(output.output_logprobs or [], output.output_ids, strict=False))
        known = [logprob for logprob, _ in inputs if logprob is not None]
        meta = replace(
            meta,
            input_token_logprobs=self._inputs[0].entries(inputs, len(inputs), self._chosen),
            output_token_logprobs=self._outputs[0].entries(outputs, settled, self._chosen),
            normalized_prompt_logprob=sum(known) / len(known) if known else None,
        )
        if self._scoring.top:
            in_top, out_top = output.prompt_top_logprobs or [], output.output_top_logprobs or []
            meta = replace(
                meta,
                input_top_logprobs=self._inputs[1].entries(in_top, len(in_top), self._top),
                output_top_logprobs=self._outputs[1].entries(out_top, settled, self._top),
            )
        if self._scoring.ids:
            in_ids, out_ids = output.prompt_id_logprobs or [], output.output_id_logprobs or []
            meta = replace(
                meta,
                input_token_ids_logprobs=self._inputs[2].entries(in_ids, len(in_ids), self._named),
                output_token_ids_logprobs=self._outputs[2].entries(out_ids, settled, self._named),
            )
        return meta

    def _chosen(self, pair: tuple[float | None, int]) -> LogprobEntry:
        return self._entry(*pair)

    def _top(self, row: list[tuple[float, int]] | None) -> msgspec.Raw | None:
        return None if row is None else self._encoded(row)

    def _named(self, row: list[float] | None) -> msgspec.Raw | None:
        return None if row is None else self._encoded(zip(row, self._scoring.ids, strict=True))

    def _encoded(self, pairs: Iterable[tuple[float, int]]) -> msgspec.Raw:
        return msgspec.Raw(_encode([self._entry(*pair) for pair in pairs]))

    def _entry(self, logprob: float | None, token: int) -> LogprobEntry:
        if self._texts is None:
            return (logprob, token, None)
        return (logprob, token, self._texts.decode([token], skip_special_tokens=False))


def finish_reason(finish: Finish | None, completion_tokens: int) -> FinishReason | None:
    if finish is None:
        return None
    if finish.type == "stop":
        return FinishReason(type="stop", matched=finish.matched, **steering(finish))
    if finish.type in ("length", "timeout"):
        kind: Literal["length", "timeout"] = "length" if finish.type == "length" else "timeout"
        return FinishReason(type=kind, length=completion_tokens, **steering(finish))
    error = finish.error
    return FinishReason(
        type="abort",
        message=error.message if error else "aborted",
        status_code=error.http_status if error else None,
        err_type=error.code if error else None,
    )
