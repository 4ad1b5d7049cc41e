"""Which part of a prompt is taken back, and what happens to a request with a healed prompt."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from srt.files.model_files import resolve_model
from srt.files.tokenizer import Tokenizer, load_tokenizer
from srt.files.vocab import Vocab, load_vocab
from srt.wire.constraint import Constraint, free_key, free_key_text
from srt.wire.messages import GenerateReq, pack_ids, unpack_ids
from srt.wire.ring_messages import CompileReply
from srt.wire.sampling import SamplingParams, Scoring
from tests.tokenizer_proc.admission.test_front import EPOCH, VOCAB, A, make_front, request
from tests.tokenizer_proc.direct_front import DirectFront
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.prompt.healing import Healing, PromptHealer

HEAL = SamplingParams(token_healing=True)


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    return load_vocab(resolve_model("smollm2"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2"))


@pytest.fixture(scope="module")
def healer(vocab: Vocab) -> PromptHealer:
    return PromptHealer(vocab)


# ---- the model's own vocabulary ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "healing"),
    [
        ("The link is http:", Healing(1, ":")),  # ://
        ("He said hel", Healing(1, " hel")),  # help, held
        ("I am hap", Healing(2, " hap")),  # happy
        ("I am ", Healing(1, " ")),
        ("for 12", Healing()),  # digits are tokens of their own
        ("Bananas!?#", Healing(1, "#")),
        ("It works. ✨", Healing()),  # a character of several tokens; no token continues it
        ("hello", Healing()),  # one token only: the prompt would be empty
        ("<|im_end|>", Healing()),
        ("hello<|im_end|>", Healing()),
    ],
)
def test_the_longest_ending_that_a_longer_token_begins_with(
    healer: PromptHealer, tokenizer: Tokenizer, prompt: str, healing: Healing
) -> None:
    assert healer.heal(tokenizer.encode(prompt), HEAL) == healing


def test_a_special_token_is_where_it_ends(
    healer: PromptHealer, tokenizer: Tokenizer, vocab: Vocab
) -> None:
    ids = tokenizer.encode("<|im_start|>assistant\n")
    assert healer.heal(ids, HEAL) == Healing(1, "\n")
    assert ids[0] in vocab.special_ids
    assert healer.heal(ids[[0, -1]], HEAL) == Healing(1, "\n")
    assert healer.heal(ids[[-1, 0]], HEAL) == Healing()


def test_only_when_it_is_asked_for_and_something_is_generated(
    healer: PromptHealer, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("see http:")
    assert healer.heal(ids, SamplingParams()) == Healing()
    assert healer.heal(ids, replace(HEAL, max_new_tokens=0)) == Healing()
    assert healer.heal(ids, replace(HEAL, max_new_tokens=1)) == Healing(1, ":")


def test_a_stop_id_is_not_written_again(healer: PromptHealer, tokenizer: Tokenizer) -> None:
    def healed(prompt: str, stop: str) -> Healing:
        stops = tokenizer.encode(stop).tolist()
        return healer.heal(tokenizer.encode(prompt), replace(HEAL, stop_token_ids=stops))

    assert healed("see http:", ":") == Healing()
    assert healed("see http:", "p") == Healing(1, ":")
    assert healed("I am hap", " h") == Healing(1, "p")
    assert healed("I am hap", "p") == Healing()


# ---- a vocabulary made for it --------------------------------------------------------------------


def of_tokens(*tokens: bytes) -> PromptHealer:
    """Tokens 0-255 are the bytes, then these, then one special token."""
    pieces = [bytes([i]) for i in range(256)] + [*tokens, b"<s>"]
    special = frozenset([len(pieces) - 1])
    return PromptHealer(Vocab("t", pieces, special, (), None, False, 100, None))


@pytest.mark.parametrize(
    ("tokens", "prompt", "healing"),
    [
        ([b"cde"], b"abcd", Healing(2, "cd")),
        ([b"cde", b"dx"], b"abcd", Healing(2, "cd")),
        ([b"dx"], b"abcd", Healing(1, "d")),
        ([b"abcdef"], b"abcd", Healing()),  # at most four tokens, and never the whole prompt
        ([b"abcdef"], b"-abcd", Healing(4, "abcd")),
        ([b"abcdef"], b"-abcde", Healing()),  # five
        (["é!".encode()], "-é".encode(), Healing(2, "é")),
        (["é!".encode()[1:]], "-é".encode(), Healing()),  # half a character is not text
        ([b"\xa9\xa9"], b"-\xa9", Healing()),
        ([b"abc"], b"ab", Healing()),
    ],
)
def test_byte_by_byte(tokens: list[bytes], prompt: bytes, healing: Healing) -> None:
    assert of_tokens(*tokens).heal(np.frombuffer(prompt, np.uint8), HEAL) == healing


def test_no_special_token_is_a_longer_one() -> None:
    assert of_tokens(b"ab").heal(np.frombuffer(b"x<", np.uint8), HEAL) == Healing()


# ---- requests ------------------------------------------------------------------------------------

MERGED = [*VOCAB.token_bytes[:256], b"<bos>", b"<eos>", b"lo!", b"://"]
FIELDS: dict[str, Any] = {"scoring": Scoring(start=5)}


def healed(front: DirectFront, req: GenerateReq) -> Any:
    return front.generate(A, req, now=0.0)


def front_of_merged() -> DirectFront:
    return make_front(vocab=dataclasses.replace(VOCAB, token_bytes=MERGED))


def test_a_free_request_gets_a_grammar_that_needs_no_compiler() -> None:
    answer = healed(front_of_merged(), request(sampling={"token_healing": True}, **FIELDS))
    assert isinstance(answer, Admission)
    sent = answer.parts[0]
    assert unpack_ids(sent.input_ids).tolist() == list(b"hel")
    assert (sent.healed_ids, sent.healed_bytes) == (pack_ids(list(b"lo")), 2)
    assert sent.grammar == free_key("lo") and free_key_text(sent.grammar) == b"lo"
    assert sent.scoring == Scoring(start=3)  # 3: where the shorter prompt ends
    assert (answer.admitted.meta.prompt_tokens, answer.admitted.meta.healed_tokens) == (5, 2)


def test_nothing_changes_without_a_longer_token() -> None:
    front = front_of_merged()
    plain = healed(front, request("a", text="hey", sampling={}))
    asked = healed(front, request("b", text="hey", sampling={"token_healing": True}))
    assert asked.parts[0] == replace(plain.parts[0], rid="b", sampling=asked.parts[0].sampling)
    assert asked.parts[0].grammar == "" and asked.admitted.meta.healed_tokens == 0


def test_a_constraint_is_compiled_with_the_text_before_it() -> None:
    front = front_of_merged()
    sampling = {"token_healing": True, "regex": "//[a-z]+", "constraint_after": "x"}
    parked = healed(front, request(text="http:", sampling=sampling))
    assert isinstance(parked, Parked) and parked.question is not None
    constraint = parked.question.constraint
    assert constraint == Constraint("regex", "//[a-z]+", after="x", before=":")
    [(_, admission)] = front.grammars.compiled(CompileReply(parked.question.id, EPOCH, "key"), 0.0)
    assert isinstance(admission, Admission)
    assert admission.parts[0].grammar == "key"
    assert unpack_ids(admission.parts[0].input_ids).tolist() == list(b"http")
    assert admission.parts[0].healed_bytes == 1 and front.tokens_in_flight == 5


def test_keys_of_artefacts_are_not_taken_for_texts() -> None:
    assert free_key_text("0" * 64) is None
    assert free_key_text(free_key("")) == b"" and free_key_text(free_key("é:")) == "é:".encode()
