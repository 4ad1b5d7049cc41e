"""Cuts messages whose size grows with a request's positions into messages that a socket accepts.

A receiver drops the connection of a peer whose message is above MAX_MESSAGE_BYTES, so the scheduler
cuts its TokenBatches, the detokenizer its OutputBatches. The parts add up to the same content.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from srt.wire.messages import LogprobDetail, Output, OutputBatch
from srt.wire.packing import num_packed, packed_slice
from srt.wire.ring_messages import Progress, PromptLogprobs, SchedulerLost, TokenBatch

PARCEL_BYTES = 16 * 1024 * 1024  # approximately; texts and headers come on top
_HEAD_BYTES = 512  # of a message's other fields


def token_batches(batch: TokenBatch) -> Iterator[TokenBatch]:
    """The batch in one or several: first starts, then prompt log-probabilities, then the rest."""
    if not batch.prompt_logprobs:
        yield batch
        return
    starts, held, size = batch.starts, list[PromptLogprobs](), 0
    for whole in batch.prompt_logprobs:
        for part in _prompt_parts(whole):
            added = _HEAD_BYTES + 2 * len(part.ids) + _detail_size(part.detail)
            if held and size + added > PARCEL_BYTES:
                yield TokenBatch(batch.incarnation, starts=starts, prompt_logprobs=held)
                starts, held, size = [], [], 0
            held.append(part)
            size += added
    yield replace(batch, starts=starts, prompt_logprobs=held)


def output_batches(epoch: int, outputs: list[Output]) -> Iterator[OutputBatch]:
    """The outputs in one batch or several; a single one that is too long becomes several Outputs;
    all but the last say that there is more."""
    if sum(map(_size, outputs)) <= PARCEL_BYTES:
        yield OutputBatch(epoch, outputs)
        return
    held, size = list[Output](), 0
    for output in outputs:
        for part in _output_parts(output):
            added = _size(part)
            if held and size + added > PARCEL_BYTES:
                yield OutputBatch(epoch, held)
                held, size = [], 0
            held.append(part)
            size += added
    yield OutputBatch(epoch, held)


def scheduler_lost_parts(incarnation: int, progress: list[Progress]) -> Iterator[SchedulerLost]:
    """What was reported of all requests, in one message or several."""
    held, size = list[Progress](), 0
    for each in progress:
        added = _HEAD_BYTES + len(each.reported.ids)
        if held and size + added > PARCEL_BYTES:
            yield SchedulerLost(incarnation, held, more=True)
            held, size = [], 0
        held.append(each)
        size += added
    yield SchedulerLost(incarnation, held)


def _prompt_parts(whole: PromptLogprobs) -> Iterator[PromptLogprobs]:
    count = num_packed(whole.ids)
    for rows in _cuts(count, 2 * len(whole.ids) + _detail_size(whole.detail)):
        packed = packed_slice(rows.start, rows.stop)
        yield replace(
            whole,
            start=whole.start + rows.start,
            ids=whole.ids[packed],
            logprobs=whole.logprobs[packed],
            detail=_rows_of(whole.detail, count, rows),
        )


def _output_parts(output: Output) -> Iterator[Output]:
    """The prompt's positions, the text, and the positions of the output, each in parts."""
    if _size(output) <= PARCEL_BYTES:
        yield output
        return
    bare = Output(output.rid, meta=output.meta, more=True)
    if output.prompt_logprob_ids:
        prompt = PromptLogprobs(
            0,
            output.prompt_logprob_start,
            output.prompt_logprob_ids,
            output.prompt_logprobs,
            output.prompt_detail,
        )
        for part in _prompt_parts(prompt):
            yield replace(
                bare,
                prompt_logprob_start=part.start,
                prompt_logprob_ids=part.ids,
                prompt_logprobs=part.logprobs,
                prompt_detail=part.detail,
            )
    for chars in _cuts(len(output.text), 4 * len(output.text)):
        yield replace(bare, text=output.text[chars])
    count, dropped = num_packed(output.ids), output.dropped
    for rows in _cuts(count, 2 * len(output.ids) + _detail_size(output.detail)):
        packed = packed_slice(rows.start, rows.stop)
        detail = _rows_of(output.detail, count, rows)
        ids, logprobs = output.ids[packed], output.logprobs[packed]
        origins = output.origins[rows]
        yield replace(
            bare, ids=ids, logprobs=logprobs, detail=detail, dropped=dropped, origins=origins
        )
        dropped = 0
    yield replace(bare, dropped=dropped, finish=output.finish, more=False)


def _cuts(count: int, size: int) -> Iterator[slice]:
    """`count` rows of `size` bytes in parts of PARCEL_BYTES, each with at least one row."""
    step = max(1, count * PARCEL_BYTES // max(1, size))
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def _rows_of(detail: LogprobDetail | None, count: int, rows: slice) -> LogprobDetail | None:
    """The given ones of the `count` rows of a detail."""
    if detail is None:
        return None
    columns = (detail.top_ids, detail.top_values, detail.id_values)
    widths = [len(column) // count for column in columns]
    parts = zip(columns, widths, strict=True)
    return LogprobDetail(*(column[rows.start * w : rows.stop * w] for column, w in parts))


def _size(output: Output) -> int:
    """Its approximate size on the wire."""
    size = _HEAD_BYTES + 4 * len(output.text) + len(output.ids) + len(output.logprobs)
    if output.prompt_logprob_ids:
        size += len(output.prompt_logprob_ids) + len(output.prompt_logprobs)
    if output.detail is not None or output.prompt_detail is not None:
        size += _detail_size(output.detail) + _detail_size(output.prompt_detail)
    return size


def _detail_size(detail: LogprobDetail | None) -> int:
    if detail is None:
        return 0
    return len(detail.top_ids) + len(detail.top_values) + len(detail.id_values)
