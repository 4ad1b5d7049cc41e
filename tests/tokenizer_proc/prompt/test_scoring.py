"""Scores at the front: the boundary rule, all-or-none admission, and limits by name.

The model has one token per byte, the merges "ab", "abc" and "xy", and <bos> and <eos>.
"""

from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from srt.callers.names import caller_of
from srt.files.gguf_tokens import byte_level_alphabet
from srt.files.tokenizer import Tokenizer
from srt.files.vocab import Vocab
from srt.wire.answer_meta import AnswerMeta
from srt.wire.errors import BAD_REQUEST, CONTEXT_LENGTH, OVERLOADED, UNAVAILABLE, ErrorInfo
from srt.wire.filled_params import FilledParams
from srt.wire.messages import (
    AbortReq,
    Admitted,
    Continuation,
    GenerateReq,
    Refused,
    ScoreReq,
    pack_ids,
    unpack_ids,
)
from srt.wire.ring_messages import Abort, Credit, TokenizedReq
from srt.wire.sampling import SamplingParams, Scoring
from tests.tokenizer_proc.direct_front import DirectFront
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.prompt import scoring
from tokenizer_proc.prompt.chat_template import ChatTemplate
from tokenizer_proc.prompt.scoring import common_length

EPOCH, CONTEXT, CLIENT = 3, 100, b"client"
BOS, EOS, AB, ABC, XY = 259, 260, 256, 257, 258
MERGES = [("a", "b"), ("ab", "c"), ("x", "y")]


def make_front(bos_id: int | None = None, **bounds: Any) -> DirectFront:
    merged = {"".join(pair): AB + i for i, pair in enumerate(MERGES)}
    encoder = tokenizers.Tokenizer(models.BPE(byte_level_alphabet() | merged, MERGES))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.add_special_tokens([AddedToken("<bos>"), AddedToken("<eos>")])
    pieces = [bytes([byte]) for byte in range(256)]
    vocab = Vocab(
        model_name="merges",
        token_bytes=[*pieces, b"ab", b"abc", b"xy", b"<bos>", b"<eos>"],
        special_ids=frozenset({BOS, EOS}),
        eos_ids=(EOS,),
        bos_id=BOS,
        add_bos=False,
        context_len=CONTEXT,
        chat_template=None,
    )
    limits: dict[str, Any] = {"max_requests": 8, "max_tokens": 1000, "max_total_tokens": 10_000}
    limits |= {"max_compile_wait_s": 60.0, "max_silence_s": 25.0, "find": lambda constraint: ""}
    limits |= bounds
    template = ChatTemplate.from_vocab(vocab)
    tokenizer = Tokenizer(encoder, () if bos_id is None else (bos_id,))
    return DirectFront(tokenizer, template, vocab, epoch=EPOCH, **limits)


def score(*continuations: str | list[int], rid: str = "s", **fields: Any) -> ScoreReq:
    made = [
        Continuation(c) if isinstance(c, str) else Continuation(None, pack_ids(c))
        for c in continuations
    ]
    if not {"text", "input_ids"} & set(fields):
        fields["text"] = "hello "
    return ScoreReq(rid=rid, epoch=fields.pop("epoch", EPOCH), continuations=made, **fields)


def admitted(front: DirectFront, req: ScoreReq) -> Admission:
    answer = front.score(CLIENT, req)
    assert isinstance(answer, Admission), answer
    return answer


def refused(front: DirectFront, req: ScoreReq) -> ErrorInfo:
    before = (front.in_flight, front.tokens_in_flight)
    answer = front.score(CLIENT, req)
    assert isinstance(answer, Refused), answer
    assert (answer.rid, answer.epoch) == (req.rid, req.epoch)
    assert (front.in_flight, front.tokens_in_flight) == before
    return answer.error


def sequences(answer: Admission) -> list[list[int]]:
    return [unpack_ids(part.input_ids).tolist() for part in answer.parts]


# ---- what becomes of a score -----------------------------------------------------------------


def test_one_request_per_continuation() -> None:
    answer = admitted(make_front(), score("you", "me", cache_salt="salt"))
    assert answer.admitted == Admitted("s", EPOCH, AnswerMeta(6), score_start=6)
    first = TokenizedReq(
        client=CLIENT,
        rid="s/0",
        incarnation=0,
        input_ids=pack_ids(list(b"hello you")),
        sampling=FilledParams(max_new_tokens=0),
        scoring=Scoring(start=6),
        cache_salt="salt",
        caller=caller_of(CLIENT, ""),
    )
    assert answer.parts[0] == first
    assert (answer.parts[1].rid, sequences(answer)[1]) == ("s/1", list(b"hello me"))


@pytest.mark.parametrize(
    ("text", "continuations", "start", "ids"),
    [
        # Shared beginnings count only if the prefix has them too.
        ("-", ["qr", "qs"], 1, [[45, 113, 114], [45, 113, 115]]),
        # If one merges with the prefix's last token, the start moves for all.
        ("-a", ["b", "q"], 1, [[45, AB], [45, 97, 113]]),
        # All merge into the same token, which the prefix does not have.
        ("-a", ["bq", "br"], 1, [[45, AB, 113], [45, AB, 114]]),
        # A merge over several of the prefix's tokens.
        ("-ab", ["c", "q"], 1, [[45, ABC], [45, AB, 113]]),
        # At the very beginning: position 0, which has no log-probability.
        ("x", ["y", "q"], 0, [[XY], [120, 113]]),
        ("", ["q", "xy"], 0, [[113], [XY]]),
        # They differ inside a character: é is two bytes, and so two tokens.
        ("-", ["é", "è"], 1, [[45, 0xC3, 0xA9], [45, 0xC3, 0xA8]]),
        # Merges within a continuation only.
        ("-q", ["abc", "ab"], 2, [[45, 113, ABC], [45, 113, AB]]),
        # The same continuation twice.
        ("-", ["q", "q"], 1, [[45, 113], [45, 113]]),
        # Special tokens written in the text.
        ("<eos>", ["<bos>", "q"], 1, [[EOS, BOS], [EOS, 113]]),
    ],
)
def test_the_boundary_rule(
    text: str, continuations: list[str], start: int, ids: list[list[int]]
) -> None:
    answer = admitted(make_front(), score(*continuations, text=text))
    assert sequences(answer) == ids
    assert answer.admitted.score_start == start
    assert all(part.scoring == Scoring(start=start) for part in answer.parts)


def test_bos_belongs_to_a_text_prefix_only() -> None:
    front = make_front(bos_id=BOS)
    answer = admitted(front, score("q", text="", rid="text"))
    assert (sequences(answer), answer.admitted.score_start) == ([[BOS, 113]], 1)
    answer = admitted(front, score("q", input_ids=pack_ids([45]), rid="ids"))
    assert (sequences(answer), answer.admitted.meta.prompt_tokens) == ([[45, 113]], 1)


def test_ids_are_joined_as_they_are() -> None:
    """Even where their text would merge; ids and texts may be mixed."""
    front = make_front()
    answer = admitted(front, score("b", [98], [AB], input_ids=pack_ids([45, 97]), rid="ids"))
    assert sequences(answer) == [[45, 97, 98], [45, 97, 98], [45, 97, AB]]
    assert answer.admitted.score_start == 2
    answer = admitted(front, score("b", [98], text="-a", rid="text"))
    assert (sequences(answer), answer.admitted.score_start) == ([[45, AB], [45, 97, 98]], 1)


def test_the_longest_common_prefix() -> None:
    arrays = [np.array(ids, np.int32) for ids in ([1, 2, 3, 4], [1, 2, 4], [1, 2, 3])]
    assert common_length(arrays) == 2
    assert common_length(arrays[:1]) == 4
    assert common_length([arrays[0], arrays[2]]) == 3
    assert common_length([arrays[0], np.empty(0, np.int32)]) == 0


# ---- bad requests ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("req", "param"),
    [
        (score(), "continuations"),
        (score("a", ""), "continuations[1]"),
        (score("a", []), "continuations[1]"),
        (score("a", [261]), "continuations[1]"),
        (score([-1]), "continuations[0]"),
        (score("a", text=None), "text"),
        (score("a", text="a", input_ids=b""), "text"),
        (score("a", input_ids=pack_ids([261])), "input_ids"),
        (score("a", input_ids=b"abc"), "input_ids"),
        (score("a", rid=""), "rid"),
        (score("a", rid="r" * 257), "rid"),
        (score("a", cache_salt="s" * 257), "cache_salt"),
        (score(*["a"] * 9), "continuations"),  # more than the server has places
    ],
)
def test_bad_requests_name_the_field(req: ScoreReq, param: str) -> None:
    error = refused(make_front(), req)
    assert (error.code, error.param, error.retryable) == (BAD_REQUEST, param, False)


@pytest.mark.parametrize(
    ("req", "param"),
    [
        (score("a", text="p" * 101), "text"),
        (score("a", input_ids=pack_ids([1] * 101)), "input_ids"),
        (score("a", "bb", text="p" * 99), "continuations[1]"),
        (score("a", [1, 1], input_ids=pack_ids([1] * 99)), "continuations[1]"),
        (score("a", text="p" * 1601), "text"),
        (score("a" * 1601, text="p"), "continuations[0]"),
    ],
)
def test_what_does_not_fit_the_context(req: ScoreReq, param: str) -> None:
    error = refused(make_front(), req)
    assert (error.code, error.param) == (CONTEXT_LENGTH, param)
    words = f"This model's maximum context length is {CONTEXT} tokens. However, you"
    assert error.message.startswith(words)


def test_the_context_may_be_filled() -> None:
    admitted(make_front(), score("a", text="p" * 99))


def test_tokens_in_all_are_bounded() -> None:
    """The prefix counts for each continuation, as it does in flight."""
    front = make_front(max_tokens=120)
    admitted(front, score("a", "b", text="p" * 59))
    error = refused(make_front(max_tokens=120), score("a", "bc", text="p" * 59))
    assert (error.code, error.param) == (BAD_REQUEST, "continuations")
    assert "120 tokens" in error.message


def test_characters_in_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted without encoding anything."""
    monkeypatch.setattr(scoring, "MAX_SCORE_CHARS", 20)
    front = make_front()
    admitted(front, score("ab", "abc", text="12345 "))
    admitted(front, score("ab", "abc", [1], input_ids=pack_ids([1] * 50), rid="ids"))
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("tokenized"))
    long = score("ab", "abcdefg", text="123456", rid="long")
    spans = score("ab", "abc", text="12345 ", literal_spans=[(0, 0)] * 3, rid="spans")
    for req in (long, spans):  # the spans count for each continuation too
        error = refused(front, req)
        assert (error.code, error.param) == (BAD_REQUEST, "continuations")


# ---- load, aborts, epochs --------------------------------------------------------------------


def overloads(front: DirectFront, req: ScoreReq) -> bool:
    error = refused(front, req)
    return (error.code, error.retryable) == (OVERLOADED, True)


def test_all_parts_find_room_or_none() -> None:
    front = make_front(max_requests=3)
    admitted(front, score("a", "b"))
    assert (front.in_flight, front.tokens_in_flight) == (2, 14)
    assert overloads(front, score("a", "b", rid="t"))
    admitted(front, score("a", rid="t"))
    for rid in ("s/0", "t/0"):
        front.dispatch.credit(Credit(CLIENT, rid, EPOCH))
    assert (front.in_flight, front.tokens_in_flight) == (1, 7)
    admitted(front, score("a", "b", rid="u"))


def test_all_tokens_find_room_or_none() -> None:
    front = make_front(max_tokens=100)
    admitted(front, score("a", text="p" * 59))
    assert overloads(front, score("a", "b", text="p" * 20, rid="t"))
    admitted(front, score("a", "b", text="p" * 19, rid="t"))


def test_a_score_and_requests_share_the_bounds() -> None:
    front = make_front(max_requests=2)
    admitted(front, score("a", "b"))
    req = GenerateReq("r", EPOCH, sampling=SamplingParams(max_new_tokens=1), text="x")
    answer = front.generate(CLIENT, req, now=0.0)
    assert isinstance(answer, Refused) and answer.error.code == OVERLOADED


def test_a_rid_is_in_use_while_any_part_is() -> None:
    front = make_front()
    admitted(front, score("a", "b"))
    front.dispatch.credit(Credit(CLIENT, "s/0", EPOCH))
    error = refused(front, score("a", "b"))
    assert (error.code, error.param) == (BAD_REQUEST, "rid")
    front.dispatch.credit(Credit(CLIENT, "s/1", EPOCH))
    admitted(front, score("a", "b"))


def test_each_part_is_aborted_by_its_own_rid() -> None:
    front = make_front()
    admitted(front, score("a", "b"))
    assert front.aborted(CLIENT, AbortReq("s/1", EPOCH)) == Abort(CLIENT, "s/1", EPOCH)
    assert front.aborted(CLIENT, AbortReq("s/2", EPOCH)) is None


def test_another_epoch_and_a_draining_server_refuse() -> None:
    front = make_front()
    assert refused(front, score("a", epoch=EPOCH + 1)).code == UNAVAILABLE
    front.drain()
    assert refused(front, score("a")).code == UNAVAILABLE
