"""Collects what the scheduler has to send to the detokenizer until the actor takes it as one batch.

Tokens that nobody looks at before the end are held back and sent HELD_TOKENS at a time: a step
then costs the detokenizer nothing. Tokens that are forced before the req is admitted for the first
time wait until then: its start says how much of the prompt was cached.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from scheduler_proc.core.requests.request import Req
from scheduler_proc.sampling.details import no_detail
from srt.wire.answer_meta import PrefixIds
from srt.wire.messages import Finish, LogprobDetail, pack_floats, pack_ids
from srt.wire.ring_messages import PromptLogprobs, ReqEnd, ReqStart, TokenBatch

HELD_TOKENS = 64  # of a req that is not watched, at most


@dataclass(slots=True)
class _Held:
    """Sampled tokens of one req that have not been sent, and their log-probabilities."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class OutputBuffer:
    """Starts come before tokens, tokens before ends; each req starts and ends exactly once."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, including what is held back."""
        self._held: dict[int, _Held] = {}  # by handle
        self._prefixes: dict[int, PrefixIds] = {}  # by handle: of those that want to know theirs
        self._early: dict[int, list[int]] = {}  # by handle: forced before its first admission
        self._begin()

    def _begin(self) -> None:
        """Start an empty batch."""
        self._batch = TokenBatch(0)  # whose lists grow; `take` completes it by the rest
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._wants_logprobs = False  # whether any of these reqs asked for them
        self._counting: dict[int, Req] = {}  # by handle

    def token(
        self,
        req: Req,
        token: int,
        logprob: float,
        detail: LogprobDetail | None = None,
        *,
        was_guessed: bool = False,
    ) -> None:
        if not req.told.has_first:
            self._first(req)
        if req.wish.is_watched:
            batch = self._batch
            if was_guessed and req.wish.sampling.token_origins:
                batch.guessed.append(len(batch.handles))
            if detail is not None:
                self._add_detail(detail)
            batch.handles.append(req.handle)
            batch.counts.append(1)
            self._ids.append(token)
            self._logprobs.append(logprob)
            self._wants_logprobs |= req.wish.scoring is not None
            if req.told.has_new_counts:
                self._note_counts(req)
            return
        held = self._held.get(req.handle)
        if held is None:
            held = self._held[req.handle] = _Held()
        held.ids.append(token)
        held.logprobs.append(logprob)
        if len(held.ids) == HELD_TOKENS:
            self._release(req)

    def jump(
        self,
        req: Req,
        drop: int,
        skip: int,
        tokens: list[int],
        logprobs: list[float],
        detail: LogprobDetail | None = None,
        *,
        closes: bool = False,
    ) -> None:
        """`tokens` replace the last `drop` tokens and begin with `skip` bytes of these;
        `logprobs` and `detail` belong to `tokens`. They may be what closes the output."""
        if not req.is_admitted and not req.is_resumed:
            self._early.setdefault(req.handle, []).extend(tokens)
            return
        self._first(req)
        self._release(req)
        self._add_detail(detail)
        column = len(self._batch.handles)
        self._batch.jumps.append((column, drop, skip))
        if closes and req.wish.sampling.token_origins:
            self._batch.closing.append(column)
        self._add_column(req, tokens, logprobs)

    def admitted(self, req: Req, prefix: PrefixIds | None = None) -> None:
        """The req has been admitted for the first time: send what had to wait for that. Its prompt
        leaves the tree at `prefix`, if it wants to know."""
        if prefix is not None and not req.told.has_start:
            self._prefixes[req.handle] = prefix
        tokens = self._early.pop(req.handle, None)
        if tokens is not None:
            self._first(req)
            self._batch.jumps.append((len(self._batch.handles), 0, 0))
            self._add_column(req, tokens, [math.nan] * len(tokens))

    def prompt_logprobs(
        self, req: Req, start: int, logprobs: np.ndarray, detail: LogprobDetail | None = None
    ) -> None:
        """Log-probabilities (float32 [n]) of prompt tokens [start, start+n)."""
        self._start(req)
        ids = req.tokens.known[start : start + len(logprobs)]
        self._batch.prompt_logprobs.append(
            PromptLogprobs(req.handle, start, pack_ids(ids), pack_floats(logprobs), detail)
        )

    def end(self, req: Req, finish: Finish) -> None:
        self._start(req)
        self.admitted(req)  # if not yet, it never will be
        self._release(req)
        self._note_counts(req)
        self._batch.ends.append(ReqEnd(req.handle, finish))

    def take(self, incarnation: int, now: float) -> TokenBatch | None:
        """Everything collected until now, or None if there is nothing to send."""
        batch = self._batch
        has_columns = batch.handles or batch.prompt_logprobs
        if not (has_columns or batch.starts or batch.firsts or batch.ends):
            return None
        batch = replace(
            batch,
            incarnation=incarnation,
            ids=pack_ids(self._ids),
            logprobs=pack_floats(self._logprobs) if self._wants_logprobs else b"",
            time_s=now,
            facts={handle: req.told.take_counts() for handle, req in self._counting.items()},
        )
        self._begin()
        return batch

    def _release(self, req: Req) -> None:
        """Put what is held back of the req into the batch, if anything."""
        held = self._held.pop(req.handle, None)
        if held is not None:
            self._add_column(req, held.ids, held.logprobs)

    def _add_column(self, req: Req, ids: list[int], logprobs: list[float]) -> None:
        self._batch.handles.append(req.handle)
        self._batch.counts.append(len(ids))
        self._ids += ids
        self._logprobs += logprobs
        self._wants_logprobs |= req.wish.scoring is not None
        self._note_counts(req)

    def _note_counts(self, req: Req) -> None:
        """Report its counts as of the end of the step, of whose tokens some may be to come."""
        if req.told.has_new_counts:
            self._counting[req.handle] = req

    def _add_detail(self, detail: LogprobDetail | None) -> None:
        """The detail belongs to the column that is added next."""
        if detail is not None:
            self._batch.details[len(self._batch.handles)] = detail

    def _first(self, req: Req) -> None:
        """The req has a token, its first if there was none: the detokenizer notes the time."""
        if not req.told.has_first:
            self._start(req)
            req.told.has_first = True
            self._batch.firsts.append(req.handle)

    def _start(self, req: Req) -> None:
        if req.told.has_start:
            return
        req.told.has_start = True
        wish, scoring = req.wish, req.wish.scoring
        self._batch.starts.append(
            ReqStart(
                handle=req.handle,
                client=wish.client,
                rid=wish.rid,
                meta=req.meta,
                stop=wish.sampling.stop,
                min_new_tokens=wish.sampling.min_new_tokens,
                stream=wish.stream,
                scoring=scoring,
                skip_special_tokens=wish.sampling.skip_special_tokens,
                skip_bytes=wish.healed_bytes,
                stop_regex=wish.sampling.stop_regex,
                no_stop_trim=wish.sampling.no_stop_trim,
                arrival_s=req.came_s,
                has_origins=wish.sampling.token_origins,
                begun=wish.begun,
                prefix=self._prefixes.pop(req.handle, None),
            )
        )
        if scoring is not None and scoring.start == 0:
            # Position 0 has no log-probability; NaN stands for null.
            none = no_detail(scoring.top, len(scoring.ids)) if wish.wants_details else None
            self.prompt_logprobs(req, 0, np.array([np.nan], np.float32), none)
