"""Greedy text is the same however a req is served, and the same as transformers' greedy text.

The scheduler's core drives each executor on the embedded model, without other processes. On torch a
first divergence is allowed only where the reference's two best logits are within 1e-3, and is
counted; the native executor's tokens must be the same, bit for bit. The reference is
teacher-forced: if each of our tokens is the reference's argmax given the tokens before it, then the
reference's greedy text is ours.
"""

from functools import cache
from typing import Any, NamedTuple

import pytest

from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.base import Executor
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.files.tokenizer import load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.messages import ChatMessage
from tests.e2e.reference import reference_logits
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.kernels.ops import load_or_skip
from tokenizer_proc.prompt.chat_template import ChatTemplate

POOL = 2048
MAX_NEW = 16
NEAR_TIE = 1e-3

TEXTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 5, 8, 13,",
    "Water boils at a temperature of",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is 12 times 12?\nA:",
    "In 1969, Neil Armstrong",
    "import numpy as np\n\nx = np.",
]
QUESTIONS = [
    "Name three fruits.",
    "What is the largest planet?",
    "Write a haiku about rain.",
    "Explain gravity to a child.",
    "How many days are in a week?",
    "Translate 'good morning' into Spanish.",
    "Give me a synonym for happy.",
    "Who wrote Romeo and Juliet?",
    "What is 7 + 5?",
    "Tell me a joke.",
]


EXECUTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("torch", {}),
    "exact": ("native", {"exact": True}),
    "native": ("native", {}),
    "16 bits": ("native", {"activations": "16"}),
}
ALL = len(TEXTS)
# All seven ways take long on torch.
FEW = {"torch": 2, "exact": 4, "native": 4, "16 bits": 4}
COUNTS = [("native", 1), *(pytest.param(each, marks=pytest.mark.full) for each in FEW.items())]
LONG = [pytest.param((name, ALL), marks=pytest.mark.slow) for name in EXECUTORS]


class Serving(NamedTuple):
    """An executor and its prompts."""

    executor: Executor
    prompts: list[list[int]]


@pytest.fixture(
    scope="module", params=[*COUNTS, *LONG], ids=lambda param: f"{param[0]}, {2 * param[1]}"
)
def serving(request: pytest.FixtureRequest) -> Serving:
    name, count = request.param
    kind, chosen = EXECUTORS[name]
    if "activations" in chosen and load_or_skip().has_tiles():
        pytest.skip("a level with tiles has activations in bfloat16 only")
    options = ExecutorOptions(max_total_tokens=POOL, **chosen)
    executor = make_executor(kind, resolve_model(DEFAULT_MODEL), options)
    return Serving(executor, [*prompts()[:count], *prompts()[ALL : ALL + count]])


@cache
def prompts() -> list[list[int]]:
    """20 prompts: ten plain texts, ten chats (which share the system prompt)."""
    files = resolve_model(DEFAULT_MODEL)
    tokenizer, template = load_tokenizer(files), ChatTemplate.from_vocab(load_vocab(files))
    chats = [template.render([ChatMessage("user", question)]) for question in QUESTIONS]
    return [tokenizer.encode(text).tolist() for text in (*TEXTS, *chats)]


def serve(serving: Serving, **config: object) -> Driver:
    """Run all prompts at once to their end."""
    defaults: dict[str, object] = {
        "max_total_tokens": POOL,
        "max_running_requests": 20,
        "context_len": serving.executor.context_len,
    }
    driver = Driver(executor=serving.executor, **{**defaults, **config})  # type: ignore[arg-type]
    send(driver, serving)
    return driver


def send(driver: Driver, serving: Serving, name: str = "") -> None:
    for i, prompt in enumerate(serving.prompts):
        driver.add(f"{name}{i}", prompt, MAX_NEW)
    driver.run()


def texts(driver: Driver, serving: Serving, name: str = "") -> list[list[int]]:
    return [driver.outputs[f"{name}{i}"] for i in range(len(serving.prompts))]


@pytest.fixture(scope="module")
def alone(serving: Serving) -> list[list[int]]:
    """Each prompt by itself, nothing shared: the baseline."""
    return texts(serve(serving, max_running_requests=1, disable_radix_cache=True), serving)


def divergences(serving: Serving, outputs: list[list[int]], baseline: list[list[int]]) -> int:
    """How many outputs differ from the baseline, each only at a near tie of the reference."""
    parted = 0
    if serving.executor.name == "native":
        assert outputs == baseline
    for prompt, ours, theirs in zip(serving.prompts, outputs, baseline, strict=True):
        if ours == theirs:
            continue
        at = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        best = reference_logits(prompt + ours[:at])[-1].topk(2).values
        assert best[0] - best[1] < NEAR_TIE, f"parted at {at} without a near tie"
        parted += 1
    return parted


def is_float32(executor: Executor) -> bool:
    """Executors that are not are measured in test_quantized_quality.py."""
    return executor.name != "native" or executor.dtype == "float32"


def test_alone_equals_transformers(serving: Serving, alone: list[list[int]]) -> None:
    if not is_float32(serving.executor):
        return
    parted = 0
    for prompt, output in zip(serving.prompts, alone, strict=True):
        logits = reference_logits(prompt + output)[len(prompt) - 1 : -1]
        for row, token in zip(logits, output, strict=True):
            if int(row.argmax()) != token:
                assert float(row.max() - row[token]) < NEAR_TIE
                parted += 1
                break
    print(f"{parted} of {len(alone)} texts part from transformers, all at near ties")
    assert parted <= 2


MODES: dict[str, dict[str, object]] = {
    "batched, cold": {"disable_radix_cache": True},
    "batched, sharing": {},
    "chunked": {"chunked_prefill_size": 16},
    "overlapped": {"lag": 1, "chunked_prefill_size": 64},
}


@pytest.mark.parametrize("mode", MODES)
def test_however_served(serving: Serving, alone: list[list[int]], mode: str) -> None:
    parted = divergences(serving, texts(serve(serving, **MODES[mode]), serving), alone)
    print(f"{mode}: {parted} texts part")
    assert parted <= 2


def test_after_retraction(serving: Serving, alone: list[list[int]]) -> None:
    """The pool is too small for all, and the scheduler expects short outputs."""
    executor, prompts = serving
    driver = Driver(
        executor=executor,
        max_running_requests=20,
        context_len=executor.context_len,
        max_total_tokens=max(18 * len(prompts), max(map(len, prompts)) + MAX_NEW + 2),
        lag=1,
    )
    driver.core.state.admissions.ratio.MIN = driver.core.state.admissions.ratio.value = 0.0
    send(driver, serving)
    assert driver.core.state.counters.retracted > 0
    assert divergences(serving, texts(driver, serving), alone) <= 2


def test_warm_equals_cold(serving: Serving, alone: list[list[int]]) -> None:
    """The second time, all of a prompt but its last token comes from the cache."""
    driver = serve(serving)
    send(driver, serving, "again ")
    hits = [driver.cached[f"again {i}"] for i in range(len(serving.prompts))]
    assert hits == [len(prompt) - 1 for prompt in serving.prompts]
    assert divergences(serving, texts(driver, serving, "again "), alone) <= 2
