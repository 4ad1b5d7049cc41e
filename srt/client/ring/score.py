"""A score in flight at a RingClient: one request per continuation, collected into one answer.

The client keeps each part among its live requests, under the part's own wire id, so that outputs,
failures and the loss of the server reach it as they reach any other request.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from srt.client.generation import ChoiceScore, PromptRequest, ScoreOutput, ScoreRequest
from srt.wire.errors import CONFLICT, RequestError
from srt.wire.media import MediaRef
from srt.wire.messages import (
    Admitted,
    Continuation,
    Output,
    ScoreReq,
    float_list,
    id_list,
    pack_ids,
    score_rid,
)


class ScorePart:
    """One continuation. It does not stream: its only Output comes when it has ended."""

    def __init__(self, score: "RingScore", wire_id: str) -> None:
        self.group = score
        self.rid, self.tenant = score.rid, score.tenant
        self.wire_id = wire_id
        self.output: Output | None = None

    def take(self, output: Output) -> None:
        finish = output.finish
        if finish is None or finish.type == "abort":
            error = finish and finish.error
            aborted = RequestError("the request was aborted", code=CONFLICT)
            self.fail(RequestError.from_info(error) if error else aborted)
            return
        self.output = output
        self.group.on_part()

    def fail(self, error: RequestError) -> None:
        self.group.fail(error)


class RingScore:
    """The parts of one score, in the order of its continuations."""

    def __init__(self, rid: str, wire_id: str, count: int, tenant: str = "") -> None:
        self.rid, self.tenant = rid, tenant
        self.wire_id = wire_id
        self.parts = [ScorePart(self, score_rid(wire_id, i)) for i in range(count)]
        self.is_admitted = False
        self._left = count
        self._error: RequestError | None = None
        self._changed = asyncio.Event()

    @property
    def wire_ids(self) -> list[str]:
        """What an abort must name."""
        return [part.wire_id for part in self.parts]

    def message(
        self, request: ScoreRequest, epoch: int, media: Sequence[MediaRef] = ()
    ) -> ScoreReq:
        """What is sent to the front, before the frames of its `media`."""
        return ScoreReq(
            **prompt_fields(request, self.wire_id, epoch, media),
            continuations=[
                Continuation(c)
                if isinstance(c, str)
                else Continuation(None, packed(c, f"continuations[{i}]"))
                for i, c in enumerate(request.continuations)
            ],
        )

    def on_part(self) -> None:
        """A part has its output."""
        self._left -= 1
        if self._left == 0:
            self._changed.set()

    def fail(self, error: RequestError) -> None:
        """A part has failed. The first error is the score's."""
        self._error = self._error or error
        self._changed.set()

    async def result(self, admitted: Admitted) -> ScoreOutput:
        """The scores, once every part has ended. Raises the error of the first that failed."""
        self.is_admitted = True
        await self._changed.wait()
        if self._error is not None:
            raise self._error.copy()
        outputs = [part.output for part in self.parts if part.output is not None]
        metas = [output.meta for output in outputs]
        return ScoreOutput(
            rid=self.rid,
            choices=[_choice(output) for output in outputs],
            start=admitted.score_start,
            prompt_tokens=admitted.meta.prompt_tokens,
            cached_tokens=min(meta.cached_tokens for meta in metas),
            computed_tokens=sum(meta.prompt_tokens - meta.cached_tokens for meta in metas),
        )


def prompt_fields(
    request: PromptRequest, wire_id: str, epoch: int, media: Sequence[MediaRef] = ()
) -> dict[str, Any]:
    """The fields of a PromptMessage. RequestError if the ids are not int32."""
    ids, spans = request.input_ids, list(request.literal_spans)
    shared = {name: getattr(request, name) for name in PromptRequest.__struct_fields__}
    own = {"rid": wire_id, "epoch": epoch, "literal_spans": spans, "media": list(media)}
    return shared | own | {"input_ids": None if ids is None else packed(ids, "input_ids")}


def packed(ids: Sequence[int], param: str) -> bytes:
    """Ids as they are sent. RequestError, naming the field, if they are not int32."""
    try:
        return pack_ids(ids)
    except (ValueError, TypeError, OverflowError):
        raise RequestError(" must be a list of int32", at=param) from None


def _choice(output: Output) -> ChoiceScore:
    logprobs = float_list(output.prompt_logprobs)
    return ChoiceScore(
        token_ids=id_list(output.prompt_logprob_ids),
        logprobs=[None if value != value else value for value in logprobs],
    )
