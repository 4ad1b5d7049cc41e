"""One request at the detokenizer: what has been generated and not yet sent.

Owned by the detokenizer core. Invariant: after its finish was sent, or its client was dropped, a
request is closed: it neither takes nor gives anything more, and holds no data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from detokenizer_proc.text_stream import Stops, TextStream
from srt.ring.crash_file import Name
from srt.wire.answer_meta import AnswerMeta, PrefixEnd, PrefixIds, updated
from srt.wire.messages import Finish, LogprobDetail, Output
from srt.wire.packing import ITEM_BYTES, num_packed, packed_size, unpack_ids
from srt.wire.ring_messages import PromptLogprobs, Reported, ReqStart

PREFIX_CHARS = 40  # shown behind the place where a prompt leaves what is cached
SAMPLED, FORCED, GUESSED, CLOSING = "s", "j", "d", "c"  # where a token is from


class Jump(NamedTuple):
    """The ids replace the last `drop` ones, and begin with their `skip` bytes."""

    drop: int
    skip: int


class Origin(NamedTuple):
    """Where tokens are from: `jump` if they were not sampled, `detail` if the request asked for it,
    and the `letter`, which counts only if the request asked for that."""

    jump: Jump | None = None
    detail: LogprobDetail | None = None
    letter: str = SAMPLED


OF_MODEL = Origin()


class DetailRows:
    """Detailed log-probabilities that are collected until they are sent: per token those of the
    `num_top` most likely tokens, and of `num_ids` named ones."""

    def __init__(self, num_top: int, num_ids: int) -> None:
        self._top_size, self._id_size = packed_size(num_top), packed_size(num_ids)
        self._top_ids, self._top_values = bytearray(), bytearray()
        self._id_values = bytearray()

    def add(self, detail: LogprobDetail, count: int) -> None:
        """Append the first `count` rows."""
        self._top_ids += detail.top_ids[: self._top_size * count]
        self._top_values += detail.top_values[: self._top_size * count]
        self._id_values += detail.id_values[: self._id_size * count]

    def keep(self, count: int) -> None:
        """Drop all but the first `count` rows."""
        del self._top_ids[self._top_size * count :]
        del self._top_values[self._top_size * count :]
        del self._id_values[self._id_size * count :]

    def packed(self) -> LogprobDetail | None:
        """All rows; None if there are none."""
        if not (self._top_ids or self._id_values):
            return None
        return LogprobDetail(bytes(self._top_ids), bytes(self._top_values), bytes(self._id_values))


@dataclass(slots=True)
class _Scores:
    """Log-probabilities that the next Output will carry, of a request that asked for any; details
    only if it asked for them."""

    detail: DetailRows | None
    prompt_detail: DetailRows | None
    logprobs: bytearray = field(default_factory=bytearray)
    prompt_start: int = -1
    prompt_ids: bytearray = field(default_factory=bytearray)
    prompt_logprobs: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class _Unsent:
    """What the next Output will carry beside the ids behind the first `sent` bytes of them: text,
    how many ids that were sent a jump has replaced since, and log-probabilities."""

    scores: _Scores | None = None
    text: list[str] = field(default_factory=list)
    sent: int = 0
    dropped: int = 0


def with_prefix(start: ReqStart, pieces: Sequence[bytes]) -> ReqStart:
    """`start` with the place where its prompt leaves what is cached among its facts, if that was
    asked for; `pieces` are all of the vocabulary."""
    if start.prefix is None:
        return start
    meta = replace(start.meta, prefix=_prefix_end(start.prefix, pieces))
    return replace(start, meta=meta, prefix=None)


def _prefix_end(ids: PrefixIds, pieces: Sequence[bytes]) -> PrefixEnd:
    """The place in the text of all the prompt's tokens. A character that is cut there is after
    it."""
    prompt = unpack_ids(ids.prompt).tolist()
    before = b"".join(pieces[i] for i in prompt[: ids.length])
    whole = before + b"".join(pieces[i] for i in prompt[ids.length :])
    start = len(before.decode(errors="ignore"))
    other: str | UnsetType = UNSET
    if ids.other is not None:
        rest = b"".join(pieces[i] for i in unpack_ids(ids.other).tolist())
        other = rest.decode(errors="ignore")[:PREFIX_CHARS]
    text = whole.decode(errors="ignore")[start : start + PREFIX_CHARS]
    return PrefixEnd(ids.length, start, text, other)


class Request:
    """Collects tokens into Outputs: one per step for a stream, else one at the end."""

    def __init__(self, start: ReqStart, pieces: Sequence[bytes]) -> None:
        self._start = start
        stops = Stops(start.stop, start.stop_regex, start.min_new_tokens, start.no_stop_trim)
        self._text = TextStream(pieces, stops, start.skip_bytes, start.begun)
        self._unsent = _Unsent(self._no_scores())
        self._ids = bytearray()  # packed: all so far
        self._pieces = pieces
        self._origins = ""  # of all of them, if they are asked for
        self._is_forced = False  # the last of them
        self._prompt_logprobs = 0  # where those that have come end
        self._jump_tokens = 0
        self._forward_passes = 0
        self._first_s: float | None = None  # when the first token came
        self._facts = start.meta  # with what its last scheduler has counted
        self.replica = 0  # whose scheduler has it, or had it last
        self.is_open = True
        self.finish: Finish | None = None

    @property
    def name(self) -> Name:
        """The client that sent the request, and its id there."""
        return self._start.client, self._start.rid

    @property
    def num_tokens(self) -> int:
        """The tokens of its output so far."""
        return self._text.num_tokens

    @property
    def reported(self) -> Reported:
        """What the scheduler has reported so far."""
        return Reported(bytes(self._ids), self._is_forced, self._prompt_logprobs)

    @property
    def takes_tokens(self) -> bool:
        """Whether neither its text nor its client has ended it."""
        return self.is_open and self.finish is None

    def add_prompt_logprobs(self, chunk: PromptLogprobs) -> None:
        """Append the log-probabilities of the next prompt tokens."""
        if not self.is_open:
            return
        self._prompt_logprobs = chunk.start + num_packed(chunk.ids)
        scores = self._unsent.scores
        if scores is None:
            return
        if scores.prompt_start < 0:
            scores.prompt_start = chunk.start
        scores.prompt_ids += chunk.ids
        scores.prompt_logprobs += chunk.logprobs
        if scores.prompt_detail and chunk.detail:
            scores.prompt_detail.add(chunk.detail, num_packed(chunk.ids))

    def note_first(self, now: float) -> None:
        """A scheduler has its first token of the request, which an earlier one may have had."""
        if self._first_s is None:
            self._first_s = now

    def add_tokens(
        self,
        ids: list[int],
        packed: bytes,
        logprobs: bytes,
        origin: Origin = OF_MODEL,
        stop_id: int | str | None = None,
    ) -> None:
        """Take new tokens, or those up to the one that completes a stop string or pattern: ids,
        then ids and log-probabilities packed in four bytes each.

        If `stop_id` is the last id, it ended the request; its text is usually not shown.
        """
        jump, text, unsent, replaced = origin.jump, self._text, self._unsent, ""
        if jump is not None:
            if self._start.has_origins:
                replaced = self._letters_of_bytes(jump.drop)
            self._drop(jump)
        before = text.num_tokens
        if stop_id is not None and ids[-1] == stop_id:
            unsent.text.append(text.push(ids[:-1]))
            text.push_stop_token(ids[-1])
        else:
            unsent.text.append(text.push(ids))
        added = text.num_tokens - before
        if jump is None:
            self._forward_passes += added
        else:
            self._jump_tokens += added - jump.drop
        self._is_forced = jump is not None
        size = packed_size(added)
        self._ids += packed[:size]
        if self._start.has_origins:
            self._origins += self._letters(ids, origin, replaced)[:added]
        if (scores := unsent.scores) is not None:
            scores.logprobs += logprobs[:size]
            if scores.detail and origin.detail:
                scores.detail.add(origin.detail, added)
        if stopped := text.stopped:
            self.finish = Finish("stop", stopped.matched)

    def _letters(self, ids: list[int], origin: Origin, replaced: str) -> str:
        """Where tokens are from. A jump's tokens that only write text again are from where that
        text was, whose bytes had the letters `replaced`: forced or appended if a part of them
        was."""
        if origin.jump is None:
            return origin.letter * len(ids)
        letters, begin = "", 0
        for token in ids:
            end = begin + len(self._pieces[token])
            before = replaced[begin:end] if end <= min(origin.jump.skip, len(replaced)) else ""
            letters += next((each for each in "jcsd" if each in before), origin.letter)
            begin = end
        return letters

    def _letters_of_bytes(self, num_tokens: int) -> str:
        """A letter for each byte of the last tokens: where the token is from that it is of."""
        ids = memoryview(self._ids).cast("i")
        first = max(0, len(ids) - num_tokens)
        return "".join(
            letter * len(self._pieces[token])
            for token, letter in zip(ids[first:].tolist(), self._origins[first:], strict=True)
        )

    def _drop(self, jump: Jump) -> None:
        """Forget the ids that a jump replaces; the client forgets those that were already sent."""
        unsent = self._unsent
        self._text.replace(jump.drop, jump.skip)
        del self._ids[len(self._ids) - packed_size(jump.drop) :]
        self._origins = self._origins[: num_packed(self._ids)]
        unsent.dropped += max(0, unsent.sent - len(self._ids)) // ITEM_BYTES
        unsent.sent = min(unsent.sent, len(self._ids))
        if (scores := unsent.scores) is not None:
            left = len(self._ids) - unsent.sent
            del scores.logprobs[left:]
            if scores.detail:
                scores.detail.keep(left // ITEM_BYTES)

    def end(self, finish: Finish) -> None:
        """The scheduler's finish, which counts only if no stop was found before."""
        if self.finish is None:
            is_cut = finish.type == "length"
            rest = self._text.finish(finish.type == "stop" or is_cut, is_cut)
            self._unsent.text.append(rest)
            stopped = self._text.stopped
            self.finish = Finish("stop", stopped.matched) if stopped else finish

    def take_output(self, now: float) -> Output | None:
        """What to send now, if anything; with the finish, which counts as of now, the request
        closes."""
        if not (self.finish or self._start.stream):
            return None
        unsent = self._unsent
        output = Output(
            self._start.rid,
            "".join(unsent.text),
            bytes(self._ids[unsent.sent :]),
            meta=self._meta(now),
            finish=self.finish,
            dropped=unsent.dropped,
            origins=self._origins[unsent.sent // ITEM_BYTES :],
        )
        if (scores := unsent.scores) is not None:
            output = replace(
                output,
                logprobs=bytes(scores.logprobs),
                prompt_logprob_start=scores.prompt_start,
                prompt_logprob_ids=bytes(scores.prompt_ids),
                prompt_logprobs=bytes(scores.prompt_logprobs),
                detail=scores.detail.packed() if scores.detail else None,
                prompt_detail=scores.prompt_detail.packed() if scores.prompt_detail else None,
            )
            unsent.scores = self._no_scores()
        unsent.text.clear()
        unsent.dropped, unsent.sent = 0, len(self._ids)
        if self.finish:
            self.close()
        return output

    def _meta(self, now: float) -> AnswerMeta:
        """All facts so far; with the finish, those of its times."""
        meta = replace(
            self._facts,
            completion_tokens=self._text.num_tokens,
            # Negative if the sampled text has been retokenised into fewer tokens.
            jump_forward_tokens=max(0, self._jump_tokens),
            forward_passes=self._forward_passes,
            routed_replica=self.replica,
            queued_s=self._facts.queued_s if self.finish else None,
        )
        if self.finish is None or self._first_s is None:
            return meta
        ttft_s, decode_s = self._first_s - self._start.arrival_s, now - self._first_s
        return replace(meta, ttft_s=ttft_s, decode_s=decode_s)

    def note_counts(self, counted: AnswerMeta) -> None:
        """Take over what a scheduler has counted so far."""
        self._facts = updated(self._start.meta, counted)

    def close(self) -> None:
        """Forget everything: nothing more will be sent."""
        self.is_open = False
        self._unsent = _Unsent()
        self._ids = bytearray()
        self._origins = ""

    def _no_scores(self) -> _Scores | None:
        scoring = self._start.scoring
        if scoring is None or not scoring.has_details:
            return None if scoring is None else _Scores(None, None)
        num_top, num_ids = scoring.top, len(scoring.ids)
        return _Scores(DetailRows(num_top, num_ids), DetailRows(num_top, num_ids))
