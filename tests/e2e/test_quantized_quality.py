"""What quantised activations and a 16-bit KV pool cost the embedded model, against float32.

The native executor's weights are the file's own, exactly; the reference is transformers on the
dequantised file. Prints what it measures (`pytest -s`), for each width of activations that the
level has.
"""

from collections.abc import Iterator
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from scheduler_proc.executor.native_executor import NativeExecutor
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.files.tokenizer import load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.messages import ChatMessage
from tests.e2e import first_questions
from tests.e2e.reference import reference_logits
from tests.running.late import late
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.ragged import Row, chunked_logprobs, make_batch
from tokenizer_proc.prompt.chat_template import ChatTemplate

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

POOL = 2048
# 50 tokens of each answer are compared.
QUESTIONS = [
    "Why is the sky blue?",
    "Write a short story about a fox and a crow.",
    "Give me a recipe for pancakes.",
    "What is a prime number? Explain with examples.",
]
ANSWER_LEN = 50


class Bounds(NamedTuple):
    """The least agreement, and the largest ratio of perplexities, difference of log-probabilities
    and mean difference."""

    agreement: float
    perplexity: float
    largest: float
    mean: float


# By width of activations and type of the pool.
DEFAULT = ("auto", "auto")
BOUNDS = {
    DEFAULT: Bounds(0.96, 1.01, 2.5, 0.3),
    ("8", "auto"): Bounds(0.96, 1.01, 2.5, 0.3),
    ("12", "float16"): Bounds(0.98, 1.001, 0.2, 0.03),
    ("16", "float16"): Bounds(0.98, 1.001, 0.2, 0.03),
    ("16", "int16"): Bounds(0.98, 1.001, 0.2, 0.03),
}
# Written for this test, so that no model has learned it by heart.
HELD_TEXT = """\
The harbour town wakes slowly in winter. Fishing boats that left at midnight come back around
the breakwater with their lamps still lit, and the gulls follow them in. On the quay, a man in a
yellow coat counts the crates as they are swung ashore, calling out each number so that the
clerk in the little office can write it down. Nobody remembers who began this custom. The clerk
could easily see the crates from his window, but the counting has become part of the morning,
like the smell of coffee from the baker's house and the bell of the ferry.

By nine the market is full. Farmers from the valley bring apples, potatoes and hard white
cheese; in exchange they take home salt cod, rope and gossip. Children run between the stalls
until the school bell rings, and then the square is suddenly quiet. In the afternoon the wind
usually turns to the north. It brings snow to the hills and clear, cold light to the water, and
the painters who rent rooms above the chandler's shop hurry out with their easels before the sun
goes down behind the lighthouse. They never have more than an hour. Perhaps that is why so many
of their pictures look unfinished, with bare canvas at the edges where the sea should have been."""


# The short form asks the first few.
FEW_QUESTIONS = 4


class Measured(NamedTuple):
    """An executor, and what it may cost."""

    executor: NativeExecutor
    bounds: Bounds


# The default also in short.
WIDTHS = [pytest.param(each, marks=() if each == DEFAULT else pytest.mark.full) for each in BOUNDS]


@pytest.fixture(scope="module", params=WIDTHS, ids="-".join)
def measured(request: pytest.FixtureRequest) -> Iterator[Measured]:
    activations, kv_dtype = request.param
    if activations != "auto" and load_or_skip().has_tiles():
        pytest.skip("a level with tiles has activations in bfloat16 only")
    files = resolve_model(DEFAULT_MODEL)
    with closing(
        NativeExecutor(files, max_total_tokens=POOL, activations=activations, kv_dtype=kv_dtype)
    ) as executor:
        print(f"\n{load_or_skip().isa()}, activations {activations}, KV {executor.dtype}:")
        yield Measured(executor, BOUNDS[request.param])


def native_logprobs(executor: NativeExecutor, ids: list[int]) -> np.ndarray:
    logprobs, _ = chunked_logprobs(executor, ids, range(len(ids)), len(ids))
    return logprobs


@cache
def reference_logprobs(ids: tuple[int, ...]) -> np.ndarray:
    logprobs = reference_logits(list(ids))[:-1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(ids)[1:, None])[:, 0].numpy()


def greedy(executor: NativeExecutor, ids: list[int], count: int) -> list[int]:
    """The next `count` tokens, one step for each."""
    executor.run(make_batch([Row(ids[:-1], range(len(ids) - 1), samples=False)]))
    tokens = list(ids)
    for _ in range(count):
        step = make_batch([Row(tokens[-1:], range(len(tokens)))])
        tokens.append(int(executor.run(step).next_ids[0]))
    return tokens[len(ids) :]


@pytest.mark.full
def test_teacher_forced_agreement(measured: Measured) -> None:
    """How often our greedy token is the reference's argmax after the same tokens."""
    files = resolve_model(DEFAULT_MODEL)
    template, tokenizer = ChatTemplate.from_vocab(load_vocab(files)), load_tokenizer(files)
    agreed = 0
    for question in QUESTIONS:
        prompt = tokenizer.encode(template.render([ChatMessage("user", question)])).tolist()
        answer = greedy(measured.executor, prompt, ANSWER_LEN)
        best = reference_logits(prompt + answer)[len(prompt) - 1 : -1].argmax(-1)
        agreed += int((best == torch.tensor(answer)).sum())
    agreement = agreed / (len(QUESTIONS) * ANSWER_LEN)
    print(f"agreement {agreement:.3f}")
    assert agreement >= measured.bounds.agreement


@pytest.mark.full
def test_perplexity_of_a_held_text(measured: Measured) -> None:
    ids = load_tokenizer(resolve_model(DEFAULT_MODEL)).encode(HELD_TEXT).tolist()
    ours = native_logprobs(measured.executor, ids)
    reference = reference_logprobs(tuple(ids))
    difference = np.abs(ours - reference)
    ratio = float(np.exp(reference.mean() - ours.mean()))
    print(f"{len(ids)} tokens, perplexity {np.exp(-reference.mean()):.3f} x {ratio:.5f}")
    print(f"log-probabilities differ by {difference.max():.3f}, {difference.mean():.3f} on average")
    assert ratio <= measured.bounds.perplexity
    assert difference.max() <= measured.bounds.largest
    assert difference.mean() <= measured.bounds.mean


@pytest.mark.parametrize("count", [FEW_QUESTIONS, pytest.param(None, marks=pytest.mark.full)])
def test_answers_to_first_questions_are_those_of_float32(count: int | None) -> None:
    """By default all but one, which may be a near tie. The level amx multiplies in bfloat16: what
    it answers is printed only."""
    asked = first_questions.prompts(first_questions.QUESTIONS[:count])
    files, found = resolve_model(DEFAULT_MODEL), []
    for exact in (True, False):
        with closing(
            NativeExecutor(files, max_total_tokens=first_questions.POOL, exact=exact)
        ) as executor:
            found.append(first_questions.answers(executor, asked))
    vocab, same = load_vocab(files), 0
    for question, expected, ours in zip(first_questions.QUESTIONS, *found, strict=False):
        same += ours.ids == expected.ids
        tie = ", a near tie" if expected.nearest < first_questions.NEAR_TIE else ""
        if ours.ids != expected.ids:
            print(
                f"\n{question} {vocab.decode(ours.ids)!r}, not {vocab.decode(expected.ids)!r}{tie}"
            )
    print(f"\n{load_or_skip().isa()}: {same} of {len(asked)} answers are float32's")
    if not load_or_skip().has_tiles():
        assert same >= len(asked) - 1
