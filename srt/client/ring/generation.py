"""What a RingClient holds of a request in flight: its samples, and the outputs of each so far.

The client hands every Output to the sample that it is for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import astuple, replace

from srt.client.generation import GenerateOutput, Request
from srt.client.ring.score import prompt_fields
from srt.client.snapshots import Snapshots
from srt.wire.answer_meta import NO_META
from srt.wire.constraint import Capture, Constraint, may_capture
from srt.wire.errors import RequestError
from srt.wire.media import MediaRef
from srt.wire.messages import (
    Admitted,
    Finish,
    GenerateReq,
    LogprobDetail,
    Output,
    sample_rid,
)
from srt.wire.packing import float_list, id_list, num_packed

Forget = Callable[["RingGeneration"], None]
# By constraint, text and tenant; None where there are no captures, or they cannot be found.
FindCaptures = Callable[[Constraint, str, str], Awaitable[list[Capture] | None]]
_ABORTED = Finish("abort")
_T = TypeVar("_T")


class RingSamples:
    """The samples of one request: usually a single one, which has the request's own ids.

    `forget` is called for one that its reader has closed before it ended, `find` for the text of
    one that has ended and may have captures.
    """

    def __init__(
        self, rid: str, wire_id: str, request: Request, forget: Forget, find: FindCaptures
    ) -> None:
        self.rid, self.tenant = rid, request.tenant
        self.wire_id = wire_id
        self._request = request
        self._find = find
        self._constraint = request.sampling.constraint
        self.prompt = _PromptLogprobs(request)
        count = request.sampling.n
        names = [(sample_rid(rid, i), sample_rid(wire_id, i)) for i in range(count)]
        self.generations = [
            RingGeneration(self, *name, request, forget)
            for name in (names if count > 1 else [(rid, wire_id)])
        ]

    @property
    def wire_ids(self) -> list[str]:
        """What an abort must name."""
        return [generation.wire_id for generation in self.generations]

    def message(self, epoch: int, media: Sequence[MediaRef] = ()) -> GenerateReq:
        """What is sent to the front, before the frames of its `media`. RequestError if the ids are
        not int32."""
        request = self._request
        return GenerateReq(
            **prompt_fields(request, self.wire_id, epoch, media),
            sampling=request.sampling,
            messages=request.messages,
            stream=request.stream,
            scoring=request.scoring,
            tools=list(request.tools),
            chat=request.chat,
            joined=request.joined,
            timeout_ms=request.timeout_ms,
            routed_replica=request.routed_replica,
            prediction=request.prediction,
            hints=request.hints,
            priority=request.priority,
            service_tier=request.service_tier,
        )

    async def captures(self, text: str) -> list[Capture] | None:
        """The captures of a text that has ended."""
        constraint = self._constraint
        if constraint is None or not may_capture(constraint):
            return None
        return await self._find(constraint, text, self.tenant)

    def admit(self, reply: Admitted) -> None:
        """The front has taken all samples, and the files that they show."""
        self._request = replace(self._request, media=())
        if self._constraint is not None and reply.lead is not None:
            after, opener = reply.lead
            self._constraint = replace(self._constraint, after=after, opener=opener)
        for generation in self.generations:
            generation.admit(reply)
        for index in reply.aborted:
            self.generations[index].take(Output(rid="", meta=reply.meta, finish=_ABORTED))


class RingGeneration(Snapshots):
    """One admitted sample of a request of a RingClient."""

    def __init__(
        self, samples: RingSamples, rid: str, wire_id: str, request: Request, forget: Forget
    ) -> None:
        super().__init__(rid)
        self.group = samples
        self.wire_id = wire_id
        self.tenant = request.tenant
        self._forget = forget
        self._prompt = samples.prompt
        self._ids: list[int] = []
        self._logprobs: list[float] | None = None
        self._tops: list[list[tuple[float, int]]] | None = None
        self._named: list[list[float]] | None = None
        if request.scoring is not None:
            self._logprobs = []
            self._tops = [] if request.scoring.top else None
            self._named = [] if request.scoring.ids else None
        self._origins = ""
        self._captures: list[Capture] | None = None

    @property
    def wire_ids(self) -> list[str]:
        """What an abort must name."""
        return [self.wire_id]

    async def complete(self) -> None:
        """Wait for the first sample's news of the prompt, and find the captures of the text."""
        await self._prompt.is_known.wait()
        self._captures = await self.group.captures(self.text)

    async def leave(self) -> None:
        self._forget(self)

    def admit(self, reply: Admitted) -> None:
        """The front has taken the request. Its first output may have come before, on another way,
        and then it has these facts too."""
        if self.meta is NO_META:
            self.meta = reply.meta
        self.opens_reasoning = reply.opens_reasoning
        self.closes_reasoning = reply.closes_reasoning

    def take(self, output: Output) -> None:
        """Add what is new."""
        self.text += output.text
        _take(self._ids, output.dropped, id_list(output.ids))
        self.meta = output.meta
        self._origins = self._origins[: len(self._origins) - output.dropped] + output.origins
        if self._logprobs is not None:
            _take(self._logprobs, output.dropped, float_list(output.logprobs))
            count = num_packed(output.ids)
            if self._tops is not None:
                _take(self._tops, output.dropped, _top_rows(output.detail, count))
            if self._named is not None:
                _take(self._named, output.dropped, _id_rows(output.detail, count))
            self._prompt.take(output)
        if output.finish is not None and output.finish.error is not None:
            self.error = RequestError.from_info(output.finish.error)
        else:
            self.finish = output.finish
        if not output.more:
            self.wake()

    def wake(self) -> None:
        super().wake()
        # What is known of the prompt comes with the first sample's first output, or never.
        if self.group.generations[0] is self:
            self._prompt.is_known.set()

    def known(self, delta: str) -> GenerateOutput:
        prompt = self._prompt
        count = len(self._ids)
        meta = replace(self.meta, completion_tokens=count, token_origins=self._origins)
        output = GenerateOutput(
            *astuple(meta),
            rid=self.rid,
            text=self.text,
            delta=delta,
            output_ids=list(self._ids),
            finish=self.finish,
            captures=self._captures,
        )
        if self._logprobs is None:
            return output
        return replace(
            output,
            output_logprobs=_copy(self._logprobs),
            prompt_logprobs=_copy(prompt.chosen),
            output_top_logprobs=_copy(self._tops),
            prompt_top_logprobs=_copy(prompt.tops),
            output_id_logprobs=_copy(self._named),
            prompt_id_logprobs=_copy(prompt.named),
        )


class _PromptLogprobs:
    """The log-probabilities of the prompt that all samples share.

    `is_known` says that no more will come.
    """

    def __init__(self, request: Request) -> None:
        self.is_known = asyncio.Event()
        self.chosen: list[tuple[float | None, int]] | None = None
        self.tops: list[list[tuple[float, int]] | None] | None = None
        self.named: list[list[float] | None] | None = None
        scoring = request.scoring
        if scoring is None or scoring.start < 0:
            self.is_known.set()
            return
        self.chosen = []
        self.tops = [] if scoring.top else None
        self.named = [] if scoring.ids else None

    def take(self, output: Output) -> None:
        if self.chosen is None or not output.prompt_logprob_ids:
            return
        ids = id_list(output.prompt_logprob_ids)
        values = float_list(output.prompt_logprobs)
        known = [value == value for value in values]  # NaN is not
        pairs = zip(values, ids, known, strict=True)
        self.chosen += [(value if has_value else None, i) for value, i, has_value in pairs]
        if self.tops is not None:
            rows = _top_rows(output.prompt_detail, len(ids))
            self.tops += [row if ok else None for row, ok in zip(rows, known, strict=True)]
        if self.named is not None:
            values_of = _id_rows(output.prompt_detail, len(ids))
            self.named += [row if ok else None for row, ok in zip(values_of, known, strict=True)]


def _top_rows(detail: LogprobDetail | None, count: int) -> list[list[tuple[float, int]]]:
    """For each of `count` positions, (logprob, id) of the most likely tokens."""
    if detail is None or not detail.top_ids:
        return [[] for _ in range(count)]
    pairs = zip(float_list(detail.top_values), id_list(detail.top_ids), strict=True)
    return _rows(list(pairs), count)


def _id_rows(detail: LogprobDetail | None, count: int) -> list[list[float]]:
    """For each of `count` positions, the log-probabilities of the named tokens."""
    if detail is None or not detail.id_values:
        return [[] for _ in range(count)]
    return _rows(float_list(detail.id_values), count)


def _rows(values: list[_T], count: int) -> list[list[_T]]:
    """`count` rows of the same length."""
    width = len(values) // count
    return [values[start : start + width] for start in range(0, len(values), width)]


def _take(rows: list[Any], dropped: int, new: list[Any]) -> None:
    """Put `new` in the place of the last `dropped` rows."""
    del rows[len(rows) - dropped :]
    rows += new


def _copy(rows: list[Any] | None) -> list[Any] | None:
    return None if rows is None else list(rows)
