"""Every rule of admission, one by one. The model: one token per byte, then <bos>, <eos>."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import tokenizers
from msgspec.structs import astuple, replace
from tokenizers import AddedToken, models, pre_tokenizers

from srt.callers.names import caller_of
from srt.files.gguf_tokens import byte_level_alphabet
from srt.files.tokenizer import Tokenizer
from srt.files.vocab import Vocab
from srt.wire.answer_meta import AnswerMeta
from srt.wire.constraint import Constraint
from srt.wire.errors import BAD_REQUEST, CONTEXT_LENGTH, OVERLOADED, UNAVAILABLE, ErrorInfo
from srt.wire.filled_params import NEUTRAL, FilledParams, SamplingDefaults
from srt.wire.messages import (
    AbortReq,
    Admitted,
    ChatMessage,
    ChatOptions,
    ControlReq,
    GenerateReq,
    Refused,
    Tokenized,
    TokenizeReq,
    ToolSpec,
    pack_ids,
    unpack_ids,
)
from srt.wire.ring_messages import Abort, Control, Credit, TokenizedReq
from srt.wire.sampling import SamplingParams, Scoring, sub_seed
from tests.tokenizer_proc.direct_front import DirectFront
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.prompt.chat_template import ChatTemplate

EPOCH, CONTEXT, EOS = 3, 100, 257
A, B = b"client-a", b"client-b"
VOCAB = Vocab(
    model_name="bytes",
    token_bytes=[bytes([byte]) for byte in range(256)] + [b"<bos>", b"<eos>"],
    special_ids=frozenset({256, EOS}),
    eos_ids=(EOS,),
    bos_id=256,
    add_bos=False,
    context_len=CONTEXT,
    chat_template="{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{% endfor %}",
)


def byte_tokenizer(bos_id: int | None = None) -> Tokenizer:
    encoder = tokenizers.Tokenizer(models.BPE(byte_level_alphabet(), []))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.add_special_tokens([AddedToken("<bos>"), AddedToken("<eos>")])
    return Tokenizer(encoder, () if bos_id is None else (bos_id,))


def make_front(bos_id: int | None = None, vocab: Vocab = VOCAB, **bounds: Any) -> DirectFront:
    limits: dict[str, Any] = {"max_requests": 4, "max_tokens": 1000, "max_total_tokens": 10_000}
    limits |= {"max_compile_wait_s": 60.0, "max_silence_s": 25.0, "find": lambda constraint: ""}
    limits |= bounds
    template = ChatTemplate.from_vocab(vocab)
    return DirectFront(byte_tokenizer(bos_id), template, vocab, epoch=EPOCH, **limits)


def request(rid: str = "r", sampling: dict[str, Any] | None = None, **fields: Any) -> GenerateReq:
    if not {"text", "input_ids", "messages"} & set(fields):
        fields["text"] = "hello"
    params = SamplingParams(**{"max_new_tokens": 8, **(sampling or {})})
    return GenerateReq(**{"rid": rid, "epoch": EPOCH, "sampling": params, **fields})


def admitted(front: DirectFront, req: GenerateReq, client: bytes = A) -> TokenizedReq:
    (part,) = samples(front, req, client)
    return part


def samples(front: DirectFront, req: GenerateReq, client: bytes = A) -> list[TokenizedReq]:
    answer = front.generate(client, req, now=0.0)
    assert isinstance(answer, Admission), answer
    assert answer.admitted == Admitted(
        req.rid, EPOCH, AnswerMeta(len(answer.parts[0].input_ids) // 4)
    )
    return answer.parts


def refused(front: DirectFront, req: GenerateReq, client: bytes = A) -> ErrorInfo:
    before = (front.in_flight, front.tokens_in_flight)
    answer = front.generate(client, req, now=0.0)
    assert isinstance(answer, Refused), answer
    assert (answer.rid, answer.epoch) == (req.rid, req.epoch)
    assert (front.in_flight, front.tokens_in_flight) == before
    return answer.error


def assert_bad(error: ErrorInfo, param: str) -> None:
    assert (error.code, error.param, error.retryable) == (BAD_REQUEST, param, False)


def assert_unavailable(error: ErrorInfo, word: str) -> None:
    assert (error.code, error.retryable) == (UNAVAILABLE, True)
    assert word in error.message


# ---- what is passed on -----------------------------------------------------------------------


def test_everything_is_passed_on() -> None:
    fields: dict[str, Any] = {
        "stream": True,
        "scoring": Scoring(2, 3, [5, 7]),
        "cache_salt": "s",
    }
    req = request(sampling={"temperature": 0.5, "stop": ["x"]}, **fields)
    assert admitted(make_front(), req) == TokenizedReq(
        client=A,
        rid="r",
        incarnation=0,
        input_ids=pack_ids(list(b"hello")),
        sampling=FilledParams.of(req.sampling, NEUTRAL),
        eos_ids=[EOS],
        **fields,
        caller=caller_of(A, ""),
    )


def test_prompts_of_each_kind() -> None:
    front = make_front(bos_id=256)
    chat = [ChatMessage("user", "hi"), ChatMessage("assistant", "ho")]
    prompts: dict[str, tuple[Any, list[int]]] = {
        "text": ("hi", [256, *b"hi"]),
        "input_ids": (pack_ids([5, 257]), [5, 257]),
        "messages": (chat, [*b"u:hia:ho"]),  # the template decides on BOS
    }
    for name, (prompt, ids) in prompts.items():
        req = admitted(front, request(rid=name, **{name: prompt}))
        assert unpack_ids(req.input_ids).tolist() == ids


@pytest.mark.parametrize("open_objects", [False, True])
def test_objects_are_closed_where_the_request_does_not_say(open_objects: bool) -> None:
    found: list[bool] = []

    def find(constraint: Constraint) -> str:
        found.append(constraint.closed)
        return "key"

    front = make_front(open_objects=open_objects, find=find, max_requests=9)
    constraints: list[dict[str, Any]] = [{"json_schema": "{}"}, {"structural_tag": "{}"}]
    for i, given in enumerate([*constraints, {"ebnf": "a"}, {"choices": ["a"]}]):
        admitted(front, request(str(i), sampling=given))
    for says in (False, True):
        given = {"json_schema": "{}", "disable_additional_properties": says}
        (part,) = samples(front, request(f"says {says}", sampling=given))
        assert part.sampling.disable_additional_properties is None
    assert found == [not open_objects, not open_objects, False, False, False, True]


def test_unset_parameters_are_filled_in_before_samples_are_made() -> None:
    own = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.05)
    names, front = own.__struct_fields__, make_front(defaults=own)
    for part in samples(front, request("unset", sampling={"n": 2})):
        assert [getattr(part.sampling, name) for name in names] == [*astuple(own)]
    given = dict(zip(names, astuple(NEUTRAL), strict=True))
    part = admitted(front, request("given", sampling=given))
    assert [getattr(part.sampling, name) for name in names] == [*astuple(NEUTRAL)]
    one = admitted(front, request("one", sampling={"top_p": 1.0})).sampling
    assert (one.top_p, one.temperature, one.has_penalties) == (1.0, 0.6, True)


def test_ignore_eos_takes_the_eos_ids_away() -> None:
    assert admitted(make_front(), request(sampling={"ignore_eos": True})).eos_ids == []


def test_bad_words_become_tokens() -> None:
    req = request(sampling={"bad_words": ["ab", " c", "  ", "ab"]})
    words = [b"ab", b" ab", b"c", b" c", b"  ", b"   "]
    assert admitted(make_front(), req).bad_ids == [list(word) for word in words]


# ---- samples ---------------------------------------------------------------------------------


def test_samples_are_requests_of_their_own() -> None:
    front = make_front(max_requests=3)
    req = request(sampling={"n": 3, "seed": 11, "stop": ["x"]}, scoring=Scoring(start=1))
    parts = samples(front, req)
    alone = admitted(make_front(), replace(req, sampling=replace(req.sampling, n=1)))
    assert parts == [
        replace(
            alone,
            rid=f"r/{i}",
            sampling=replace(alone.sampling, seed=sub_seed(11, i)),
            scoring=Scoring(1 if i == 0 else -1),
        )
        for i in range(3)
    ]
    assert len({part.sampling.seed for part in parts}) == 3 and parts[0].sampling.seed == 11
    assert (front.in_flight, front.tokens_in_flight) == (3, 15)
    assert front.aborted(A, AbortReq("r/2", EPOCH)) == Abort(A, "r/2", EPOCH)
    for i in range(3):
        front.dispatch.credit(Credit(A, f"r/{i}", EPOCH))
    assert (front.in_flight, front.tokens_in_flight) == (0, 0)


def test_samples_without_a_seed_have_none() -> None:
    parts = samples(make_front(), request(sampling={"n": 2}))
    assert [part.sampling.seed for part in parts] == [None, None]


def test_samples_are_refused_together() -> None:
    front = make_front(max_requests=4, max_tokens=20)
    samples(front, request("1", sampling={"n": 2}))
    assert refused(front, request("2", sampling={"n": 3})).code == OVERLOADED
    assert refused(front, request("2", text="x" * 6, sampling={"n": 2})).code == OVERLOADED
    assert_bad(refused(front, request("1", sampling={"n": 2})), "rid")
    assert_bad(refused(front, request("1/1")), "rid")
    assert_bad(refused(front, request("2", sampling={"n": 5})), "n")
    assert_bad(refused(front, request("2", sampling={"n": 0})), "n")
    assert_bad(refused(front, request("2", sampling={"n": 129})), "n")
    samples(front, request("2", sampling={"n": 2}))


# ---- bad requests ----------------------------------------------------------------------------


@pytest.mark.parametrize("rid", ["", "r" * 257])
def test_rid_length(rid: str) -> None:
    assert_bad(refused(make_front(), request(rid=rid)), "rid")
    admitted(make_front(), request(rid="r" * 256))


def test_salt_length() -> None:
    assert_bad(refused(make_front(), request(cache_salt="s" * 257)), "cache_salt")
    assert_bad(refused(make_front(), request(tenant="t" * 257)), "tenant")


def test_rid_in_flight_is_refused_for_the_same_client_only() -> None:
    front = make_front()
    admitted(front, request())
    assert_bad(refused(front, request()), "rid")
    admitted(front, request(), client=B)
    front.dispatch.credit(Credit(A, "r", EPOCH))
    admitted(front, request())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": None}, "text"),
        ({"text": "a", "input_ids": pack_ids([1])}, "input_ids"),
        ({"text": "a", "messages": [ChatMessage("user", "a")]}, "messages"),
        ({"text": ""}, "text"),
        ({"input_ids": b""}, "input_ids"),
        ({"input_ids": b"\x01\x00"}, "input_ids"),
        ({"input_ids": pack_ids([0, 258])}, "input_ids"),
        ({"input_ids": pack_ids([-1, 5])}, "input_ids"),
        ({"messages": []}, "messages"),
        ({"messages": [ChatMessage("user", "a"), ChatMessage("", "b")]}, "messages"),
        ({"sampling": {"top_p": 0.0}}, "top_p"),
        ({"sampling": {"temperature": math.nan}}, "temperature"),
        ({"sampling": {"stop_token_ids": [1] * 257}}, "stop_token_ids"),
        ({"sampling": {"min_new_tokens": 9}}, "min_new_tokens"),
        ({"sampling": {"allowed_token_ids": [1] * 259}}, "allowed_token_ids"),
        ({"sampling": {"allowed_token_ids": [258]}}, "allowed_token_ids"),
        ({"scoring": Scoring(start=-2)}, "logprob_start_len"),
        ({"scoring": Scoring(start=6)}, "logprob_start_len"),
        ({"scoring": Scoring(top=65)}, "top_logprobs"),
        ({"scoring": Scoring(top=-1)}, "top_logprobs"),
        ({"scoring": Scoring(ids=[258])}, "logprob_token_ids"),
        ({"scoring": Scoring(ids=[-1])}, "logprob_token_ids"),
        ({"scoring": Scoring(ids=[1] * 257)}, "logprob_token_ids"),
        ({"sampling": {"stop_regex": ["a", "b)"]}}, "stop_regex"),
        ({"sampling": {"stop_regex": ["a*"]}}, "stop_regex"),
        ({"sampling": {"stop_regex": ["(ab){300}"]}}, "stop_regex"),
        ({"sampling": {"stop_regex": ["(?=a)b"]}}, "stop_regex"),
        ({"chat": ChatOptions(add_generation_prompt=False)}, "chat"),
    ],
)
def test_bad_requests_name_the_field(fields: dict[str, Any], param: str) -> None:
    assert_bad(refused(make_front(), request(**fields)), param)


def test_edges_that_are_allowed() -> None:
    front = make_front()
    admitted(front, request("ids", input_ids=pack_ids([0, 257])))
    admitted(front, request("start", scoring=Scoring(start=5)))
    admitted(front, request("details", scoring=Scoring(top=64, ids=[0, 257] * 128)))


def test_stop_ids_that_the_vocabulary_lacks_stop_nothing() -> None:
    sampling = {"stop_token_ids": [-1, 7, 258, 2**40], "token_healing": True}
    (tokenized,) = samples(make_front(), request(sampling=sampling))
    assert tokenized.sampling.stop_token_ids == [7]


def test_min_new_tokens_against_the_room_that_is_left() -> None:
    sampling = {"max_new_tokens": None, "min_new_tokens": CONTEXT - 5}
    admitted(make_front(), request(sampling=sampling))
    error = refused(make_front(), request(text="hello!", sampling=sampling))
    assert_bad(error, "min_new_tokens")


def test_a_model_without_template_takes_no_chats() -> None:
    front = make_front(vocab=dataclasses.replace(VOCAB, chat_template=None))
    assert_bad(refused(front, request(messages=[ChatMessage("user", "a")])), "messages")


# ---- lengths ---------------------------------------------------------------------------------


def assert_too_long(error: ErrorInfo, param: str, limit: int = CONTEXT) -> None:
    assert (error.code, error.param, error.retryable) == (CONTEXT_LENGTH, param, False)
    words = f"This model's maximum context length is {limit} tokens. However, you"
    assert error.message.startswith(words)


def test_prompt_and_completion_must_fit_together() -> None:
    admitted(make_front(), request(text="x" * 92))
    error = refused(make_front(), request(text="x" * 93))
    assert_too_long(error, "max_new_tokens")
    assert "you requested 101 tokens (93 in the prompt, 8 in the completion)" in error.message


def test_the_token_pool_bounds_too() -> None:
    error = refused(make_front(max_total_tokens=12), request())
    assert_too_long(error, "max_new_tokens", limit=12)


def test_no_max_new_tokens_takes_the_room_that_is_left() -> None:
    req = request(text="x" * 99, sampling={"max_new_tokens": None})
    assert admitted(make_front(), req).sampling.max_new_tokens == 1
    ids = pack_ids(np.zeros(100))
    error = refused(make_front(), request(input_ids=ids, sampling={"max_new_tokens": None}))
    assert_too_long(error, "input_ids")
    assert "your prompt resulted in 100 tokens" in error.message


def test_a_prompt_alone_may_fill_the_context() -> None:
    nothing = {"max_new_tokens": 0}
    assert admitted(make_front(), request(text="x" * 100, sampling=nothing))
    assert_too_long(refused(make_front(), request(text="x" * 101, sampling=nothing)), "text")
    assert_too_long(refused(make_front(), request(text="x" * 101)), "text")


def test_long_text_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    front = make_front()
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("tokenized"))
    text = "x" * (16 * CONTEXT + 1)
    assert_too_long(refused(front, request(text=text)), "text")
    assert_too_long(refused(front, request(messages=[ChatMessage("user", text)])), "messages")
    half = ChatMessage("user", text[: len(text) // 2])  # only the rendered whole is too long
    assert_too_long(refused(front, request(messages=[half, half])), "messages")


# ---- tokens only -----------------------------------------------------------------------------


def tokenized(front: DirectFront, **fields: Any) -> list[int]:
    answer = front.tokenize(TokenizeReq(rid="t", epoch=EPOCH, **fields))
    assert isinstance(answer, Tokenized) and (answer.rid, answer.epoch) == ("t", EPOCH)
    ids: list[int] = unpack_ids(answer.ids).tolist()
    return ids


def test_tokenize() -> None:
    front = make_front(bos_id=256, max_requests=1)
    admitted(front, request())
    front.drain()
    assert tokenized(front, text="hi") == [256, *b"hi"]
    assert tokenized(front, text="hi", add_special_tokens=False) == [*b"hi"]
    assert tokenized(front, text="", add_special_tokens=False) == []
    assert tokenized(front, text="x" * 150)[1:] == [*b"x" * 150]  # more than the context has
    chat = [ChatMessage("user", "hi"), ChatMessage("assistant", "ho")]
    assert tokenized(front, messages=chat) == [*b"u:hia:ho"]
    assert front.in_flight == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text"),
        ({"text": "a", "messages": [ChatMessage("user", "a")]}, "text"),
        ({"messages": []}, "messages"),
        ({"text": "a", "tools": [ToolSpec("f")]}, "tools"),
        ({"text": "a", "chat": ChatOptions(continue_final=True)}, "chat"),
        ({"text": "a", "rid": ""}, "rid"),
    ],
)
def test_what_cannot_be_tokenized(fields: dict[str, Any], param: str) -> None:
    answer = make_front().tokenize(TokenizeReq(**{"rid": "t", "epoch": EPOCH, **fields}))
    assert isinstance(answer, Refused)
    assert_bad(answer.error, param)


def test_text_that_is_too_long_to_tokenize() -> None:
    answer = make_front().tokenize(TokenizeReq("t", EPOCH, "x" * (16 * CONTEXT + 1)))
    assert isinstance(answer, Refused) and answer.error.code == CONTEXT_LENGTH
    stale = make_front().tokenize(TokenizeReq("t", EPOCH - 1, "x"))
    assert isinstance(stale, Refused)
    assert_unavailable(stale.error, "restarted")


# ---- load ------------------------------------------------------------------------------------


def test_requests_in_flight_are_bounded() -> None:
    front = make_front(max_requests=2)
    admitted(front, request("1"))
    admitted(front, request("2"), client=B)
    error = refused(front, request("3"))
    assert (error.code, error.retryable) == (OVERLOADED, True)
    front.dispatch.credit(Credit(B, "2", EPOCH))
    admitted(front, request("3"))


def test_prompt_tokens_in_flight_are_bounded() -> None:
    front = make_front(max_tokens=10)
    admitted(front, request("1"))
    admitted(front, request("2"))
    assert (front.in_flight, front.tokens_in_flight) == (2, 10)
    error = refused(front, request("3", text="x"))
    assert (error.code, error.retryable) == (OVERLOADED, True)


def test_a_large_prompt_is_taken_when_nothing_is_in_flight() -> None:
    front = make_front(max_tokens=10)
    admitted(front, request("large", text="x" * 50))
    assert refused(front, request("small", text="x")).code == OVERLOADED
    front.dispatch.credit(Credit(A, "large", EPOCH))
    admitted(front, request("small", text="x"))


def test_credits_count_once_and_for_known_requests() -> None:
    front = make_front()
    admitted(front, request("1"))
    admitted(front, request("2", text="xy"))
    for credit in (
        Credit(B, "1", EPOCH),
        Credit(A, "9", EPOCH),
        Credit(A, "1", EPOCH - 1),
        Credit(A, "1", EPOCH),
        Credit(A, "1", EPOCH),
    ):
        front.dispatch.credit(credit)
    assert (front.in_flight, front.tokens_in_flight) == (1, 2)


# ---- epochs, draining, the other messages ----------------------------------------------------


def test_another_epoch_is_refused() -> None:
    for epoch in (EPOCH - 1, EPOCH + 1):
        assert_unavailable(refused(make_front(), replace(request(), epoch=epoch)), "restarted")


def test_reset_forgets_what_was_in_flight() -> None:
    front = make_front()
    admitted(front, request())
    front.reset(EPOCH + 1, [EPOCH + 1])
    assert (front.in_flight, front.tokens_in_flight) == (0, 0)
    assert_unavailable(refused(front, request()), "restarted")
    answer = front.generate(A, replace(request(), epoch=EPOCH + 1), now=0.0)
    assert isinstance(answer, Admission)
    front.dispatch.credit(Credit(A, "r", EPOCH))
    assert front.in_flight == 1


def test_draining_refuses_new_requests_only() -> None:
    front = make_front()
    admitted(front, request())
    front.drain()
    assert_unavailable(refused(front, request("2")), "draining")
    assert front.aborted(A, AbortReq("r", EPOCH)) is not None
    assert isinstance(front.controlled(A, ControlReq("c", EPOCH, "stats")), Control)


def test_abort_goes_on_for_requests_in_flight_only() -> None:
    front = make_front()
    admitted(front, request())
    assert front.aborted(A, AbortReq("r", EPOCH)) == Abort(A, "r", EPOCH)
    assert front.in_flight == 1
    assert front.aborted(B, AbortReq("r", EPOCH)) is None
    assert front.aborted(A, AbortReq("x", EPOCH)) is None
    assert front.aborted(A, AbortReq("r", EPOCH - 1)) is None


def test_statistics_have_what_the_front_and_the_compiler_count() -> None:
    front = make_front()
    req = ControlReq("c", EPOCH, "stats")
    counts: dict[str, float] = {"num_tokenizing_reqs": 0, "num_grammar_queue_reqs": 0}
    counts["generation_paused"] = 0.0
    counts["num_grammar_cache_hit_total"] = 0
    counts["expected_queue_wait_seconds"] = 0.0
    names = ("num_media_queue_reqs", "media_held_bytes", "num_media_decoded_total")
    counts |= dict.fromkeys((*names, "num_media_known_total"), 0)
    assert front.controlled(A, req) == Control(A, "c", EPOCH, "stats", counts=counts)
    totals = {"num_grammar_compiled_total": 2.0, "num_grammar_cache_hit_total": 3.0}
    front.grammars.compile_counts = totals
    assert isinstance(front.generate(A, request(sampling={"regex": "a"}), now=0.0), Parked)
    counts |= {"num_grammar_queue_reqs": 1, **totals}
    assert front.controlled(A, req) == Control(A, "c", EPOCH, "stats", counts=counts)


def test_control() -> None:
    front = make_front()
    passed = front.controlled(A, ControlReq("c", EPOCH, "flush_cache", 2.0))
    assert passed == Control(A, "c", EPOCH, "flush_cache", 2.0)
    bad = {
        "op": ControlReq("c", EPOCH, "reboot"),
        "rid": ControlReq("", EPOCH, "stats"),
        "timeout_s": ControlReq("c", EPOCH, "flush_cache", math.inf),
        "mode": ControlReq("c", EPOCH, "pause", mode="at_once"),
    }
    for param, req in bad.items():
        answer = front.controlled(A, req)
        assert isinstance(answer, Refused)
        assert_bad(answer.error, param)
    stale = front.controlled(A, ControlReq("c", EPOCH - 1, "stats"))
    assert isinstance(stale, Refused)
    assert_unavailable(stale.error, "restarted")
