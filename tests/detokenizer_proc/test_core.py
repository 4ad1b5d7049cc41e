"""The detokenizer's contract: outputs, stop strings, ends, credits, clients, epochs."""

import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from detokenizer_proc.core import Detokenizer, DetokenizerStep
from srt.files.vocab import Vocab
from srt.patterns import classes
from srt.wire.answer_meta import AnswerMeta
from srt.wire.errors import ErrorInfo
from srt.wire.messages import (
    Finish,
    LogprobDetail,
    Output,
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from srt.wire.ring_messages import (
    Credit,
    PromptLogprobs,
    ReqEnd,
    ReqStart,
    TextStopped,
    TokenBatch,
)
from srt.wire.sampling import Scoring

EPOCH, EOS = 7, 256
RUN = 9  # the incarnation of the scheduler
A, B = b"client-a", b"client-b"
VOCAB = Vocab(
    model_name="bytes",
    token_bytes=[bytes([byte]) for byte in range(256)] + [b"<eos>"],
    special_ids=frozenset({EOS}),
    eos_ids=(EOS,),
    bos_id=None,
    add_bos=False,
    context_len=100,
    chat_template=None,
)
NOTHING = DetokenizerStep({}, [], [])
LENGTH = Finish("length")


@pytest.fixture
def detokenizer() -> Detokenizer:
    return Detokenizer(VOCAB, EPOCH, [RUN])


def start(handle: int, client: bytes = A, **fields: Any) -> ReqStart:
    return ReqStart(handle, client, f"r{handle}", AnswerMeta(10, 4), **fields)


def batch(
    tokens: dict[int, list[int] | bytes] | None = None,
    starts: tuple[ReqStart, ...] = (),
    ends: dict[int, Finish] | None = None,
    logprobs: list[float] | None = None,
    prompt_logprobs: tuple[PromptLogprobs, ...] = (),
    incarnation: int = RUN,
) -> TokenBatch:
    tokens = tokens or {}
    return TokenBatch(
        incarnation=incarnation,
        handles=list(tokens),
        counts=[len(ids) for ids in tokens.values()],
        ids=pack_ids([i for ids in tokens.values() for i in ids]),
        logprobs=b"" if logprobs is None else pack_floats(logprobs),
        starts=list(starts),
        prompt_logprobs=list(prompt_logprobs),
        ends=[ReqEnd(handle, finish) for handle, finish in (ends or {}).items()],
    )


def only_output(step: DetokenizerStep, client: bytes = A) -> Output:
    assert list(step.outputs) == [client]
    (output,) = step.outputs[client]
    assert (output.meta.prompt_tokens, output.meta.cached_tokens) == (10, 4)
    return output


def ids_of(output: Output) -> list[int]:
    ids: list[int] = unpack_ids(output.ids).tolist()
    return ids


# ---- streams and single answers --------------------------------------------------------------


def test_a_stream_has_an_output_per_step(detokenizer: Detokenizer) -> None:
    first = only_output(detokenizer.step(batch({1: b"h"}, (start(1, stream=True),))))
    assert (first.rid, first.text, ids_of(first)) == ("r1", "h", [0x68])
    assert (first.meta.completion_tokens, first.finish) == (1, None)
    held = only_output(detokenizer.step(batch({1: b"\xc3"})))
    assert (held.text, ids_of(held), held.meta.completion_tokens) == ("", [0xC3], 2)
    step = detokenizer.step(batch({1: b"\xa9!"}, ends={1: LENGTH}))
    last = only_output(step)
    assert (last.text, ids_of(last), last.meta.completion_tokens) == ("é!", [0xA9, 0x21], 4)
    assert last.finish == LENGTH
    assert step.credits == [Credit(A, "r1", EPOCH, 4)]
    assert step.stopped == []
    assert detokenizer.in_flight == 0


def test_without_stream_there_is_one_output(detokenizer: Detokenizer) -> None:
    assert detokenizer.step(batch({1: b"he"}, (start(1),))) == NOTHING
    assert detokenizer.step(batch({1: b"ll"})) == NOTHING
    step = detokenizer.step(batch({1: b"o"}, ends={1: LENGTH}))
    output = only_output(step)
    assert (output.text, ids_of(output)) == ("hello", list(b"hello"))
    assert (output.meta.completion_tokens, output.finish) == (5, LENGTH)
    assert step.credits == [Credit(A, "r1", EPOCH, 5)]


def test_a_step_without_new_ids_sends_nothing(detokenizer: Detokenizer) -> None:
    detokenizer.step(batch({1: b"h"}, (start(1, stream=True),)))
    assert detokenizer.step(batch({1: b""})) == NOTHING
    assert detokenizer.step(batch()) == NOTHING


def test_outputs_are_grouped_by_client(detokenizer: Detokenizer) -> None:
    starts = (start(1, stream=True), start(2, B, stream=True), start(3, stream=True))
    step = detokenizer.step(batch({1: b"a", 2: b"bc", 3: b"d"}, starts))
    texts = {client: [o.text for o in outputs] for client, outputs in step.outputs.items()}
    assert texts == {A: ["a", "d"], B: ["bc"]}


def test_an_end_without_tokens(detokenizer: Detokenizer) -> None:
    error = ErrorInfo("internal", "gone")
    finish = Finish("abort", None, error)
    step = detokenizer.step(batch(starts=(start(1),), ends={1: finish}))
    output = only_output(step)
    assert (output.text, output.meta.completion_tokens, output.finish) == ("", 0, finish)
    assert step.credits == [Credit(A, "r1", EPOCH)]


# ---- logprobs --------------------------------------------------------------------------------


def test_logprobs_go_to_those_who_asked(detokenizer: Detokenizer) -> None:
    starts = (start(1, stream=True, scoring=Scoring()), start(2, stream=True))
    values = [-0.5, -1.5, math.nan]
    step = detokenizer.step(batch({1: b"ab", 2: b"c"}, starts, logprobs=values))
    asked, other = step.outputs[A]
    assert unpack_floats(asked.logprobs).tolist() == [-0.5, -1.5]
    assert other.logprobs == b""


def test_prompt_logprobs_come_first_and_in_order(detokenizer: Detokenizer) -> None:
    chunks = (
        PromptLogprobs(1, 2, pack_ids([7, 8]), pack_floats([math.nan, -1.0])),
        PromptLogprobs(1, 4, pack_ids([9]), pack_floats([-2.0])),
    )
    request = start(1, stream=True, scoring=Scoring())
    assert detokenizer.step(batch(starts=(request,), prompt_logprobs=chunks[:1])) == NOTHING
    step = detokenizer.step(batch({1: b"a"}, prompt_logprobs=chunks[1:], logprobs=[-3.0]))
    output = only_output(step)
    assert output.prompt_logprob_start == 2
    assert unpack_ids(output.prompt_logprob_ids).tolist() == [7, 8, 9]
    expected = np.array([math.nan, -1.0, -2.0], dtype=np.float32)
    np.testing.assert_array_equal(unpack_floats(output.prompt_logprobs), expected)
    later = only_output(detokenizer.step(batch({1: b"b"}, logprobs=[-1.0])))
    assert (later.prompt_logprob_start, later.prompt_logprobs) == (-1, b"")


def test_details_of_the_prompt_and_of_both_kinds(detokenizer: Detokenizer) -> None:
    """Only requests that asked get details; those of the prompt come in chunks."""
    asking = start(1, stream=True, scoring=Scoring(top=1, ids=[5, 6]))
    chunks = [
        PromptLogprobs(
            1,
            first,
            pack_ids([7]),
            pack_floats([-1.0]),
            LogprobDetail(pack_ids([first]), pack_floats([-2.0]), pack_floats([-3.0, -4.0])),
        )
        for first in (2, 3)
    ]
    detail = LogprobDetail(pack_ids([0x61]), pack_floats([-0.5]), pack_floats([-5.0, -6.0]))
    first = batch({2: b"x", 1: b"a"}, (asking, start(2, stream=True)), logprobs=[math.nan, -0.5])
    step = detokenizer.step(replace(first, prompt_logprobs=chunks, details={1: detail}))
    other, asked = step.outputs[A]
    assert (other.detail, other.prompt_detail) == (None, None)
    assert asked.detail == detail
    assert asked.prompt_detail == LogprobDetail(
        pack_ids([2, 3]), pack_floats([-2.0, -2.0]), pack_floats([-3.0, -4.0, -3.0, -4.0])
    )
    named = start(3, stream=True, scoring=Scoring(ids=[5]))
    only = LogprobDetail(id_values=pack_floats([-1.0]))
    later = replace(batch({3: b"b"}, (named,), logprobs=[-0.5]), details={0: only})
    assert only_output(detokenizer.step(later)).detail == only


# ---- how requests end ------------------------------------------------------------------------


def test_a_stop_string_has_the_last_word(detokenizer: Detokenizer) -> None:
    request = start(1, stop=["\nQ:"], stream=True, scoring=Scoring())
    first = only_output(detokenizer.step(batch({1: b"ok\n"}, (request,), logprobs=[0, -1, -2])))
    assert (first.text, ids_of(first)) == ("ok", list(b"ok\n"))
    step = detokenizer.step(batch({1: b"Q:xyz"}, logprobs=[-3, -4, -5, -6, -7]))
    output = only_output(step)
    assert (output.text, ids_of(output), output.meta.completion_tokens) == ("", list(b"Q:"), 5)
    assert unpack_floats(output.logprobs).tolist() == [-3, -4]
    assert output.finish == Finish("stop", "\nQ:")
    assert step.stopped == [TextStopped(A, "r1", EPOCH)]
    assert step.credits == []
    assert detokenizer.in_flight == 1
    assert detokenizer.step(batch({1: b"more"}, logprobs=[0, 0, 0, 0])) == NOTHING
    ended = detokenizer.step(batch(ends={1: Finish("abort")}))
    assert ended == DetokenizerStep({}, [], [Credit(A, "r1", EPOCH, 5)])


def test_a_stop_string_wins_over_an_end_in_the_same_batch(detokenizer: Detokenizer) -> None:
    request = start(1, stop=["b"])
    step = detokenizer.step(batch({1: [*b"abc", EOS]}, (request,), {1: Finish("stop", EOS)}))
    output = only_output(step)
    assert (output.text, ids_of(output)) == ("a", list(b"ab"))
    assert (output.meta.completion_tokens, output.finish) == (2, Finish("stop", "b"))
    assert step.stopped == []
    assert step.credits == [Credit(A, "r1", EPOCH, 2)]


@pytest.mark.parametrize("finish", [LENGTH, Finish("abort"), Finish("stop", EOS)])
def test_held_text_is_flushed_at_the_end(detokenizer: Detokenizer, finish: Finish) -> None:
    request = start(1, stop=["stop"], stream=True)
    first = only_output(detokenizer.step(batch({1: b"a sto"}, (request,))))
    assert first.text == "a "
    assert only_output(detokenizer.step(batch(ends={1: finish}))).text == "sto"


@pytest.mark.parametrize("skip_special_tokens", [True, False])
@pytest.mark.parametrize("stop_id", [EOS, ord("z")])
def test_a_stop_token_counts_but_is_not_text(
    detokenizer: Detokenizer, stop_id: int, skip_special_tokens: bool
) -> None:
    request = start(1, skip_special_tokens=skip_special_tokens, stop=["z!"])
    step = detokenizer.step(batch({1: [0x61, stop_id]}, (request,), {1: Finish("stop", stop_id)}))
    output = only_output(step)
    assert (output.text, ids_of(output), output.meta.completion_tokens) == ("a", [0x61, stop_id], 2)
    assert output.finish == Finish("stop", stop_id)


@pytest.mark.parametrize("skip_special_tokens", [True, False])
@pytest.mark.parametrize("stop_id", [EOS, ord("z")])
def test_a_stop_token_that_is_not_trimmed(
    detokenizer: Detokenizer, stop_id: int, skip_special_tokens: bool
) -> None:
    """It is text, unless it is a skipped special token; no stop string is found in it."""
    request = start(1, no_stop_trim=True, skip_special_tokens=skip_special_tokens, stop=["az"])
    step = detokenizer.step(batch({1: [0x61, stop_id]}, (request,), {1: Finish("stop", stop_id)}))
    output = only_output(step)
    shown = {EOS: "" if skip_special_tokens else "<eos>"}.get(stop_id, "z")
    assert (output.text, output.finish) == ("a" + shown, Finish("stop", stop_id))
    assert ids_of(output) == [0x61, stop_id]


@pytest.mark.parametrize("finish", [LENGTH, Finish("stop", EOS), Finish("abort")])
def test_a_match_that_waits_for_the_end(detokenizer: Detokenizer, finish: Finish) -> None:
    """It counts if the length or a stop token ends the request, but not after an abort."""
    ids = [*b" foo", EOS] if finish.matched else b" foo"
    output = only_output(
        detokenizer.step(batch({1: ids}, (start(1, stop_regex=[r"foo\b"]),), {1: finish}))
    )
    is_abort = finish.type == "abort"
    assert output.text == (" foo" if is_abort else " ")
    assert output.finish == (finish if is_abort else Finish("stop", r"foo\b"))


def test_no_stream_waits_for_tables_of_characters(detokenizer: Detokenizer) -> None:
    """The tables are made before the first request comes."""
    tables = (classes._unicode_category, classes._case_variants, classes._cased_in_order)
    for table in tables:
        table.cache_clear()
    Detokenizer(VOCAB, EPOCH, [RUN])
    known = [table.cache_info().misses for table in tables]
    detokenizer.step(batch({1: b"a"}, (start(1, stop_regex=[r"(?iu)\w\W\d\s\bé"]),)))
    assert [table.cache_info().misses for table in tables] == known


def test_a_stop_pattern_ends_a_request(detokenizer: Detokenizer) -> None:
    request = start(1, stop_regex=["never", r"\n\d+:"], stream=True)
    first = only_output(detokenizer.step(batch({1: b"ok\n"}, (request,))))
    assert (first.text, ids_of(first)) == ("ok", list(b"ok\n"))
    step = detokenizer.step(batch({1: b"12:xyz"}))
    output = only_output(step)
    assert (output.text, ids_of(output), output.meta.completion_tokens) == ("", list(b"12:"), 6)
    assert output.finish == Finish("stop", r"\n\d+:")
    assert step.stopped == [TextStopped(A, "r1", EPOCH)]


def test_kept_stops(detokenizer: Detokenizer) -> None:
    starts = (
        start(1, stop=["b"], no_stop_trim=True),
        start(2, stop_regex=["[bc]+"], no_stop_trim=True),
    )
    step = detokenizer.step(batch({1: b"abc", 2: b"abc"}, starts))
    assert [output.text for output in step.outputs[A]] == ["ab", "ab"]


def test_a_request_may_have_several_columns(detokenizer: Detokenizer) -> None:
    z = ord("z")
    step = detokenizer.step(
        TokenBatch(
            incarnation=RUN,
            handles=[1, 2, 1],
            counts=[2, 1, 2],
            ids=pack_ids([0x61, z, 0x62, 0x63, z]),
            starts=[start(1, stream=True), start(2, stream=True)],
            ends=[ReqEnd(1, Finish("stop", z))],
        )
    )
    first, second = step.outputs[A]
    assert (first.text, ids_of(first)) == ("azc", [0x61, z, 0x63, z])
    assert (first.meta.completion_tokens, second.text) == (4, "b")


def test_special_tokens_within_the_text(detokenizer: Detokenizer) -> None:
    starts = (start(1), start(2, skip_special_tokens=False))
    tokens: dict[int, list[int] | bytes] = {1: [0x61, EOS, 0x62], 2: [0x61, EOS, 0x62]}
    step = detokenizer.step(batch(tokens, starts, {1: LENGTH, 2: LENGTH}))
    assert [output.text for output in step.outputs[A]] == ["ab", "a<eos>b"]
    assert [output.meta.completion_tokens for output in step.outputs[A]] == [3, 3]


def test_min_new_tokens_blocks_stop_strings(detokenizer: Detokenizer) -> None:
    starts = (
        start(1, stop=["a"], min_new_tokens=3, stream=True),
        start(2, stop_regex=["a"], min_new_tokens=3, stream=True),
    )
    first = detokenizer.step(batch({1: b"ab", 2: b"ab"}, starts))
    assert [output.text for output in first.outputs[A]] == ["ab", "ab"]
    second = detokenizer.step(batch({1: b"a", 2: b"a"}))
    stops = [(output.text, output.finish) for output in second.outputs[A]]
    assert stops == [("", Finish("stop", "a"))] * 2


# ---- strangers, lost clients, epochs ---------------------------------------------------------


def test_unknown_handles_are_ignored(detokenizer: Detokenizer) -> None:
    chunk = PromptLogprobs(9, 0, pack_ids([1]), pack_floats([0.0]))
    assert detokenizer.step(batch({9: b"a"}, ends={9: LENGTH}, prompt_logprobs=(chunk,))) == NOTHING
    starts = (start(1, stream=True),)
    assert only_output(detokenizer.step(batch({9: b"xy", 1: b"a"}, starts))).text == "a"


def test_a_dropped_client_gets_nothing_but_its_credits_come(detokenizer: Detokenizer) -> None:
    starts = (start(1, stream=True, stop=["b"]), start(2, B, stream=True))
    detokenizer.step(batch({1: b"a", 2: b"a"}, starts))
    detokenizer.drop_client(A)
    step = detokenizer.step(batch({1: b"b", 2: b"b"}))
    assert only_output(step, B).text == "b"
    assert step.stopped == []
    assert detokenizer.in_flight == 2
    step = detokenizer.step(batch(ends={1: Finish("abort"), 2: LENGTH}))
    assert only_output(step, B).finish == LENGTH
    assert step.credits == [Credit(A, "r1", EPOCH, 1), Credit(B, "r2", EPOCH, 2)]


def test_another_incarnation_is_ignored_and_reset_forgets(detokenizer: Detokenizer) -> None:
    assert detokenizer.step(batch({1: b"a"}, (start(1),), incarnation=RUN - 1)) == NOTHING
    detokenizer.step(batch({1: b"a"}, (start(1),)))
    detokenizer.reset(EPOCH + 1, [RUN + 1])
    assert detokenizer.in_flight == 0
    assert detokenizer.step(batch(ends={1: LENGTH}, incarnation=RUN + 1)) == NOTHING
    step = detokenizer.step(batch({1: b"b"}, (start(1),), {1: LENGTH}, incarnation=RUN + 1))
    assert only_output(step).text == "b"
    assert step.credits == [Credit(A, "r1", EPOCH + 1, 1)]
