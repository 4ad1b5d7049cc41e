"""Requests with pictures at the front: from files to spans, places, refusals, and ends."""

from typing import Any

import pytest

from srt.callers.names import caller_of
from srt.wire.errors import BAD_REQUEST, CONTEXT_LENGTH, OVERLOADED, UNAVAILABLE, ErrorInfo
from srt.wire.media import MediaRef
from srt.wire.messages import (
    AbortReq,
    ChatMessage,
    Continuation,
    GenerateReq,
    Refused,
    ScoreReq,
    Tokenized,
    TokenizeReq,
    pack_ids,
    unpack_ids,
)
from srt.wire.ring_messages import Credit, MediaSent, MediaWanted, TokenizedReq
from srt.wire.sampling import SamplingParams
from tests.tokenizer_proc.admission.test_front import EPOCH, A, B, make_front
from tests.tokenizer_proc.media.fake_processor import (
    IMAGE,
    VIDEO,
    SeeingFront,
    image,
    picture,
    video,
)
from tokenizer_proc.admission.front import Word
from tokenizer_proc.dispatch.admission import Admission

SMALL, LARGE = picture(16, 8, 1), picture(24, 16, 2)  # of 2 and 6 tokens


def request(rid: str = "r", sampling: dict[str, Any] | None = None, **fields: Any) -> GenerateReq:
    if not {"text", "input_ids", "messages"} & set(fields):
        fields["text"] = "a<image>b"
    fields.setdefault("media", [image()])
    params = SamplingParams(**{"max_new_tokens": 8, **(sampling or {})})
    return GenerateReq(**{"rid": rid, "epoch": EPOCH, "sampling": params, **fields})


def word_of(
    front: SeeingFront, req: GenerateReq | ScoreReq, *files: bytes, client: bytes = A
) -> Word | None:
    word = front.submit(client, req, 0.0, files)
    return front.go_on().get(req.rid) if word is None else word


def admitted(
    front: SeeingFront, req: GenerateReq | ScoreReq, *files: bytes, client: bytes = A
) -> Admission:
    word = word_of(front, req, *files, client=client)
    assert isinstance(word, Admission), word
    return word


def refused(front: SeeingFront, req: GenerateReq | ScoreReq, *files: bytes) -> ErrorInfo:
    before = (front.in_flight, front.tokens_in_flight, front.media.store.num_bytes)
    word = word_of(front, req, *files)
    assert isinstance(word, Refused), word
    assert (front.in_flight, front.tokens_in_flight, front.media.store.num_bytes) == before
    assert len(front.media) == 0
    return word.error


def ids_of(part: TokenizedReq) -> list[int]:
    return [int(i) for i in unpack_ids(part.input_ids)]


def spans_of(part: TokenizedReq) -> list[tuple[int, int, str]]:
    return [(span.start, span.item.length, span.item.kind) for span in part.media]


def credit(front: SeeingFront, admission: Admission) -> None:
    for part in admission.parts:
        front.dispatch.credit(Credit(part.client, part.rid, EPOCH))


# ---- prompts -----------------------------------------------------------------------------------


def test_a_text_with_a_picture() -> None:
    front = SeeingFront(bos_id=256)
    admission = admitted(front, request(), SMALL)
    (part,) = admission.parts
    assert ids_of(part) == [256, *b"a[", IMAGE, IMAGE, *b"]b"]
    assert spans_of(part) == [(3, 2, "image")]
    assert (admission.admitted.meta.prompt_tokens, admission.admitted.meta.media_tokens) == (7, 2)
    assert front.tokens_in_flight == 7


def test_several_media_in_their_order() -> None:
    front = SeeingFront()
    refs = [image(), video(2), image()]
    req = request(text="<image>x<video><image>", media=refs)
    (part,) = admitted(front, req, SMALL, LARGE, SMALL, LARGE).parts
    assert spans_of(part) == [(1, 2, "image"), (6, 6, "video"), (14, 2, "video"), (18, 6, "image")]
    ids = ids_of(part)
    assert [ids.count(IMAGE), ids.count(VIDEO)] == [8, 8]


@pytest.mark.parametrize(
    "given",
    [[65, IMAGE, 66], [65, *b"[", IMAGE, IMAGE, *b"]", 66], [IMAGE, IMAGE]],
    ids=["one placeholder", "expanded", "expanded without its frame"],
)
def test_token_ids(given: list[int]) -> None:
    (part,) = admitted(SeeingFront(), request(text=None, input_ids=pack_ids(given)), SMALL).parts
    whole = [65, *b"[", IMAGE, IMAGE, *b"]", 66] if given[0] == 65 else given
    assert ids_of(part) == whole
    assert spans_of(part) == [(whole.index(IMAGE), 2, "image")]


@pytest.mark.parametrize("given", [[65], [IMAGE] * 3, [IMAGE, 65, IMAGE], [VIDEO]])
def test_token_ids_that_match_no_medium(given: list[int]) -> None:
    error = refused(SeeingFront(), request(text=None, input_ids=pack_ids(given)), SMALL)
    assert error.code == BAD_REQUEST and (error.param or "").startswith("media")


LISTS = (
    "{% for m in messages %}{{ m.role[0] }}:{% for c in m.content %}"
    "{% if c.type == 'text' %}{{ c.text }}{% else %}<{{ c.type }}>{% endif %}"
    "{% endfor %}{% endfor %}"
)
BOTH = (
    "{% for m in messages %}{{ m.role[0] }}:{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}"
    "{% else %}<{{ c.type }}>{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(("template", "between"), [(None, b"\n"), (LISTS, b""), (BOTH, b"")])
def test_a_chat(template: str | None, between: bytes) -> None:
    """Templates that know no lists get placeholders in the text, one part a line."""
    chat = [
        ChatMessage("system", "s"),
        ChatMessage("user", "", parts=["what is", 0]),
        ChatMessage("assistant", "it"),
        ChatMessage("user", "", parts=[1, "?"]),
    ]
    refs = [image(), video(1)]
    front = SeeingFront(template)
    (part,) = admitted(front, request(messages=chat, media=refs), SMALL, SMALL).parts
    shown = [*b"[", IMAGE, IMAGE, *b"]"], [*b"[", VIDEO, VIDEO, *b"]"]
    assert ids_of(part) == [
        *b"s:su:what is" + between,
        *shown[0],
        *b"a:itu:",
        *shown[1],
        *between + b"?",
    ]


@pytest.mark.parametrize("template", [None, LISTS, BOTH])
@pytest.mark.parametrize("special_in_content", [False, True])
def test_a_placeholder_that_a_user_writes_is_text(
    template: str | None, special_in_content: bool
) -> None:
    chat = [ChatMessage("user", "", parts=["<image> <video><im", 0, "age>"])]
    front = SeeingFront(template, special_in_content=special_in_content)
    (part,) = admitted(front, request(messages=chat), SMALL).parts
    assert bytes(i for i in ids_of(part) if i < 256).replace(b"\n", b"") == (
        b"u:<image> <video><im[]age>"
    )
    assert spans_of(part)[0][1:] == (2, "image")
    # Nor does it show anything in a chat without pictures.
    if not special_in_content:
        (part,) = admitted(front, request("t", messages=[_user("<image>")], media=[])).parts
        assert ids_of(part) == [*b"u:<image>"] and part.media == []


def _user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def test_placeholders_in_literal_spans_are_text() -> None:
    req = request(text="<image> <image>", literal_spans=[(0, 7)])
    (part,) = admitted(SeeingFront(), req, SMALL).parts
    assert ids_of(part) == [*b"<image> [", IMAGE, IMAGE, *b"]"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": "no placeholder"}, "media"),
        ({"text": "<image><image>"}, "media"),
        ({"text": "<video>"}, "media"),
        ({"text": "<image><video>"}, "text"),
        ({"text": "<image>", "media": []}, "text"),
        ({"text": None, "input_ids": pack_ids([65, IMAGE]), "media": []}, "input_ids"),
        ({"messages": [ChatMessage("user", "hi")]}, "messages"),
        ({"messages": [ChatMessage("user", "", parts=[0, 0])]}, "messages"),
        ({"messages": [ChatMessage("user", "", parts=[1])]}, "messages"),
    ],
)
def test_media_and_placeholders_that_do_not_match(fields: dict[str, Any], param: str) -> None:
    req = request(**fields)
    files = [SMALL] * len(req.media)
    if req.text is None and not req.messages and not req.media:
        front = SeeingFront()
        word = front.submit(A, req, 0.0)
        assert isinstance(word, Refused) and word.error.param == param
        return
    error = refused(SeeingFront(), req, *files)
    assert (error.code, error.param) == (BAD_REQUEST, param)


def test_a_picture_that_does_not_fit_the_context() -> None:
    for req in (request(), request(text=None, input_ids=pack_ids([IMAGE]))):
        error = refused(SeeingFront(), req, picture(160, 160))
        assert error.code == CONTEXT_LENGTH and "400 tokens" in error.message
    chat = [ChatMessage("user", "", parts=[0])]
    assert refused(SeeingFront(), request(messages=chat), picture(160, 160)).param == "messages"
    error = refused(SeeingFront(), request(sampling={"max_new_tokens": 100}), picture(160, 128))
    assert (error.code, error.param) == (CONTEXT_LENGTH, "max_new_tokens")


def test_the_tokens_of_a_chat_without_media() -> None:
    front = SeeingFront()
    word = front.tokenize(TokenizeReq(rid="t", epoch=EPOCH, text="<image>"))
    assert word == Tokenized("t", EPOCH, pack_ids([IMAGE]))
    chat = [ChatMessage("user", "", parts=["x", 0])]
    word = front.tokenize(TokenizeReq(rid="t", epoch=EPOCH, messages=chat))
    assert isinstance(word, Refused) and word.error.param == "messages"


# ---- samples and scores ------------------------------------------------------------------------


def test_samples_share_a_picture_until_the_last_has_ended() -> None:
    front = SeeingFront()
    parts = admitted(front, request(sampling={"n": 3}), SMALL).parts
    assert [part.media for part in parts] == [parts[0].media] * 3
    held = front.media.store.num_bytes
    assert held == 16 * 8 * 3
    for part in parts:
        assert front.media.store.num_bytes == held
        front.dispatch.credit(Credit(part.client, part.rid, EPOCH))
    assert front.media.store.num_bytes == 0


@pytest.mark.parametrize("prefix", [{"text": "<image>a"}, {"input_ids": pack_ids([IMAGE, 97])}])
def test_a_score(prefix: dict[str, Any]) -> None:
    front = SeeingFront()
    continuations = [Continuation("b"), Continuation(None, pack_ids([99]))]
    req = ScoreReq(rid="s", epoch=EPOCH, continuations=continuations, media=[image()], **prefix)
    admission = admitted(front, req, SMALL)
    shown = [*b"[", IMAGE, IMAGE, *b"]a"]
    assert [ids_of(part) for part in admission.parts] == [[*shown, 98], [*shown, 99]]
    assert [spans_of(part) for part in admission.parts] == [[(1, 2, "image")]] * 2
    told = admission.admitted
    assert (told.meta.prompt_tokens, told.score_start, told.meta.media_tokens) == (5, 5, 2)
    credit(front, admission)
    assert front.media.store.num_bytes == 0


def test_a_score_whose_continuation_has_a_placeholder() -> None:
    for continuation in (Continuation("<image>"), Continuation(None, pack_ids([IMAGE]))):
        req = ScoreReq(
            rid="s", epoch=EPOCH, text="<image>", continuations=[continuation], media=[image()]
        )
        assert refused(SeeingFront(), req, SMALL).param == "media"


def test_no_token_of_a_picture_is_healed() -> None:
    req = request(text="<image>", sampling={"token_healing": True})
    (part,) = admitted(SeeingFront(), req, SMALL).parts
    assert part.healed_ids == b""


# ---- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refs", "files", "param"),
    [
        ([image()] * 5, [SMALL] * 5, "media"),
        ([image()] * 10_000, [SMALL] * 10_000, "media"),
        ([MediaRef("audio", b"")], [SMALL], "media[0]"),
        ([image(), image(detail="huge")], [SMALL, SMALL], "media[1]"),
        ([image(), image()], [SMALL, b""], "media[1]"),
        ([image()], [bytes(20_000_001)], "media[0]"),
        ([image(frames=2)], [SMALL, SMALL], "media[0]"),
        ([video(3), image(frames=-1)], [SMALL, SMALL], "media[1]"),
        ([MediaRef("video", b"", num_frames=10**6)], [SMALL], "media[0]"),
        ([image(b"x"), image(b"y", 0)], [SMALL], "media[1]"),
        ([image(), image()], [SMALL, b"no image"], "media[1]"),
    ],
)
def test_media_that_are_refused(refs: list[MediaRef], files: list[bytes], param: str) -> None:
    front = SeeingFront()
    error = refused(front, request(text="<image>" * min(len(refs), 5), media=refs), *files)
    assert (error.code, error.param, error.retryable) == (BAD_REQUEST, param, False)
    assert front.processor.decoded in ([], [SMALL, b"no image"])


def test_a_model_that_sees_nothing() -> None:
    req = request(text="a")
    word = make_front().submit(A, req, 0.0, [SMALL])
    assert isinstance(word, Refused) and word.error.param == "media[0]"
    front = SeeingFront(limit_media=0)
    assert "--limit-media" in refused(front, request(), SMALL).message


def test_what_is_held_is_bounded() -> None:
    front = SeeingFront(media_bytes=1000)
    first = admitted(front, request("1"), SMALL)
    error = refused(front, request("2"), bytes(900))
    assert (error.code, error.retryable) == (OVERLOADED, True)
    # The pixels have no room: the file is kept.
    second = admitted(front, request("3"), LARGE)
    assert front.media.store.num_bytes == 16 * 8 * 3 + len(LARGE)
    credit(front, first)
    credit(front, second)
    assert front.media.store.num_bytes == 0
    assert refused(front, request("4"), bytes(2000)).param == "media[0]"  # no image, but taken


# ---- one decode --------------------------------------------------------------------------------


def test_a_known_file_is_not_decoded_again() -> None:
    front = SeeingFront()
    first = admitted(front, request("1"), SMALL)
    credit(front, first)
    second = admitted(front, request("2"), SMALL, client=B)
    assert front.processor.decoded == [SMALL]
    assert second.parts[0].media == first.parts[0].media
    assert front.media.store.num_bytes == len(SMALL)


def test_a_file_that_several_ask_about_is_decoded_once() -> None:
    front = SeeingFront()
    for rid, client in (("1", A), ("2", A), ("3", B)):
        assert front.submit(client, request(rid), 0.0, [SMALL]) is None
    assert set(front.go_on()) == {"1", "2", "3"}
    assert front.processor.decoded == [SMALL]
    assert front.media.store.num_bytes == 16 * 8 * 3


def test_a_claimed_hash_is_not_believed() -> None:
    front = SeeingFront()
    first = admitted(front, request("1", media=[image(b"same")]), SMALL)
    second = admitted(front, request("2", media=[image(b"same")]), LARGE)
    assert spans_of(first.parts[0]) != spans_of(second.parts[0])
    both = request(
        "3", text="<image><image><image>", media=[image(b"s"), image(b"s"), image(b"s", 0)]
    )
    (part,) = admitted(front, both, LARGE, SMALL).parts
    assert [span.item.length for span in part.media] == [6, 2, 6]


def test_options_are_part_of_a_file() -> None:
    front = SeeingFront()
    refs = [image(b"x"), image(b"x", 0, detail="low"), image(b"x", 0)]
    (part,) = admitted(front, request(text="<image>" * 3, media=refs), SMALL).parts
    digests = [span.item.digest for span in part.media]
    assert digests[0] == digests[2] != digests[1]
    assert front.processor.decoded == [SMALL, SMALL]


def test_callers_take_turns() -> None:
    """Of each caller one file is hashed, and one decoded, at a time."""
    front = SeeingFront()
    for i in range(3):
        front.submit(A, request(f"a{i}"), 0.0, [picture(8, 8, i)])
    front.submit(B, request("b"), 0.0, [picture(8, 8, 9)])
    first, second = front.media.take_file(), front.media.take_file()
    callers = [caller_of(client, "") for client in (A, B)]
    assert first and second and [first[0], second[0]] == callers
    assert front.media.take_file() is None
    front.media.hashed(*first, b"1")
    front.media.hashed(*second, b"2")
    while front.hash_one():
        pass
    decodes = front.media.take_decode(), front.media.take_decode()
    assert decodes[0] and decodes[1] and {decodes[0][0], decodes[1][0]} == set(callers)
    assert front.media.take_decode() is None


# ---- ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_an_abort_while_a_request_waits(stage: int) -> None:
    front = SeeingFront()
    front.submit(A, request(), 0.0, [SMALL])
    taken = None
    if stage == 1:
        taken = front.media.take_file()
    elif stage == 2:
        front.hash_one()
    word = front.abort(A, AbortReq("r", EPOCH))
    assert isinstance(word, Admission) and word.admitted.aborted == [0]
    assert (front.in_flight, front.media.store.num_bytes, len(front.media)) == (0, 0, 0)
    if taken:
        front.media.hashed(*taken, b"key")
    assert front.go_on() == {} and front.processor.decoded == []
    admitted(front, request(), SMALL)  # its name is free


def test_an_abort_of_one_sample_while_all_wait() -> None:
    front = SeeingFront()
    front.submit(A, request(sampling={"n": 2}), 0.0, [SMALL])
    assert front.abort(A, AbortReq("r/0", EPOCH)) is None
    word = front.go_on()["r"]
    assert isinstance(word, Admission) and [part.rid for part in word.parts] == ["r/1"]
    credit(front, word)
    assert front.media.store.num_bytes == 0


def test_an_abort_while_its_file_is_decoded() -> None:
    front = SeeingFront()
    front.submit(A, request("1"), 0.0, [SMALL])
    front.hash_one()
    taken = front.media.take_decode()
    assert taken
    front.abort(A, AbortReq("1", EPOCH))
    front.submit(B, request("2"), 0.0, [SMALL])
    front.media.decoded(*taken, [])
    assert isinstance(front.go_on()["2"], Admission)


def test_a_request_that_times_out_while_it_waits() -> None:
    front = SeeingFront()
    front.submit(A, request(timeout_ms=1000), 0.0, [SMALL])
    assert front.expire(0.5) == []
    ((client, word),) = front.expire(2.0)
    assert client == A and isinstance(word, Refused)
    assert (front.in_flight, front.media.store.num_bytes) == (0, 0)
    assert front.go_on() == {}


def test_a_new_epoch() -> None:
    front = SeeingFront()
    admitted(front, request("1"), SMALL)
    front.submit(A, request("2"), 0.0, [LARGE])
    front.submit(A, request("3"), 0.0, [picture(8, 8)])
    file = front.media.take_file()
    assert file
    front.media.hashed(*file, b"key")
    decode = front.media.take_decode()
    assert decode
    front.reset(EPOCH + 1, [EPOCH + 1])
    assert (front.media.store.num_bytes, len(front.media)) == (0, 0)
    front.media.decoded(*decode, [])
    assert front.go_on() == {}
    word = front.submit(A, request("2"), 0.0, [LARGE])
    assert isinstance(word, Refused) and word.error.code == UNAVAILABLE


# ---- schedulers --------------------------------------------------------------------------------


def wanted(front: SeeingFront, *digests: bytes, incarnation: int = EPOCH) -> list[MediaSent]:
    front.media.want(MediaWanted(incarnation, list(digests)), front.dispatch.replicas.incarnations)
    front.go_on()
    sent = front.media.take_sent(front.dispatch.replicas.incarnations)
    for _, message, blobs in sent:
        assert len(blobs) == message.num_frames
        for blob in blobs:
            height, width = message.item.size
            assert len(blob) == height * width * 3
    return [message for _, message, _ in sent]


def test_a_scheduler_gets_pixels() -> None:
    front = SeeingFront()
    (part,) = admitted(front, request(), SMALL).parts
    item = part.media[0].item
    for _ in range(2):  # also after it has forgotten them
        assert wanted(front, item.digest) == [MediaSent(item, EPOCH)]
    assert wanted(front, item.digest, incarnation=EPOCH - 1) == []
    assert front.processor.decoded == [SMALL]


def test_pixels_of_a_known_file_are_decoded_when_they_are_wanted() -> None:
    front = SeeingFront()
    credit(front, admitted(front, request("1"), SMALL))
    (part,) = admitted(front, request("2"), SMALL).parts
    item = part.media[0].item
    assert wanted(front, item.digest, item.digest) == [MediaSent(item, EPOCH)] * 2
    assert front.processor.decoded == [SMALL, SMALL]
    assert front.media.store.num_bytes == 16 * 8 * 3  # kept now
    wanted(front, item.digest)
    assert front.processor.decoded == [SMALL, SMALL]


def test_pixels_without_room_are_decoded_each_time() -> None:
    front = SeeingFront(media_bytes=100)
    (part,) = admitted(front, request(), SMALL).parts
    item = part.media[0].item
    assert wanted(front, item.digest) == wanted(front, item.digest) == [MediaSent(item, EPOCH)]
    assert front.processor.decoded == [SMALL] * 3
    assert front.media.store.num_bytes == len(SMALL)


def test_pixels_that_are_not_there() -> None:
    front = SeeingFront()
    admission = admitted(front, request(), SMALL)
    digest = admission.parts[0].media[0].item.digest
    credit(front, admission)
    for missing in (digest, b"?" * 32):
        (sent,) = wanted(front, missing)
        assert sent.item.digest == missing
        assert sent.error is not None and sent.error.retryable and sent.error.code == UNAVAILABLE


def test_pixels_that_cannot_be_decoded_again() -> None:
    """As when the machine has no time for it now: the requests may be sent again."""
    front = SeeingFront()
    credit(front, admitted(front, request("1"), SMALL))
    (part,) = admitted(front, request("2"), SMALL).parts
    front.media.want(MediaWanted(EPOCH, [part.media[0].item.digest]), [EPOCH])
    taken = front.media.take_decode()
    assert taken
    error = ErrorInfo(BAD_REQUEST, " took too long to decode", follows_param=True)
    front.media.decoded(*taken, error)
    ((_, sent, blobs),) = front.media.take_sent([EPOCH])
    assert blobs == [] and sent.error is not None and sent.error.retryable
    assert sent.error.message == "a file took too long to decode"


def test_answers_to_a_lost_scheduler_are_dropped() -> None:
    front = SeeingFront()
    (part,) = admitted(front, request(), SMALL).parts
    digest = part.media[0].item.digest
    front.media.want(MediaWanted(EPOCH, [digest]), [EPOCH])
    assert front.media.take_sent([EPOCH + 1]) == []


def test_different_files_with_the_same_item() -> None:
    """The item is there as long as one of them is."""
    front = SeeingFront()
    one = admitted(front, request("1"), SMALL)
    other = admitted(front, request("2"), SMALL.replace(b" ", b"  "))
    item = one.parts[0].media[0].item
    assert other.parts[0].media[0].item == item
    credit(front, one)
    assert wanted(front, item.digest) == [MediaSent(item, EPOCH)]
    credit(front, other)
    assert front.media.store.num_bytes == 0


def test_who_has_most_pictures_waiting_gives_way() -> None:
    """The whole request ends, and its client is told so."""
    front = SeeingFront(media_bytes=300)

    def sent(client: bytes, rid: str) -> Word | None:
        return front.submit(client, request(rid), 0.0, [f"8 8 {rid} ".encode().ljust(100)])

    assert [sent(A, rid) for rid in ("1", "2", "3")] == [None] * 3
    word = sent(A, "4")
    assert isinstance(word, Refused) and "of this caller" in word.error.message
    assert [sent(B, "5"), sent(B, "6"), sent(b"c", "7")] == [None] * 3
    assert sent(b"d", "8") is None
    ((client, answer),) = front.giving_way.take_answers()
    assert isinstance(answer, Refused) and (client, answer.rid) == (A, "3")
    assert answer.error.code == OVERLOADED and "made room for another" in answer.error.message
    assert front.media.store.num_bytes == 600 and (A, "3") not in front.dispatch.places
