"""Constrained generation on the real model: whatever is sampled, an output that ends by itself
matches its constraint, with jump-forward and without it."""

import json
import random
import re
from collections.abc import Iterator

import pytest

from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.base import Executor
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.files.model_files import resolve_model
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.constraint import Constraint
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq
from tests.scheduler_proc.driver import Driver

POOL = 8192
AT_ONCE = 20
_ATOMS = (
    *("a", "the ", "Berlin", r"\d", r"\w", "[a-f]", "[^,]", ".", "é", "世界", "😀", r"\s", r'"'),
    *(r"[A-Z][a-z]+", r"\d{2}", "[é-ü]", r"[\w ]", "yes|no", ": ", r"\.", r"\n"),
)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    options = ExecutorOptions(max_total_tokens=POOL)
    yield make_executor("auto", resolve_model("smollm2"), options)


@pytest.fixture(scope="module")
def lab(executor: Executor) -> "Lab":
    return Lab(executor)


class Lab:
    """The model, and what constrained decoding needs."""

    def __init__(self, executor: Executor) -> None:
        files = resolve_model("smollm2")
        self.vocab = load_vocab(files)
        self.prompt = load_tokenizer(files).encode("The record reads as follows:\n")
        self.compiler = GrammarCompiler(TokenVocabulary.from_vocab(self.vocab), "fsm")
        self.retokeniser = Retokeniser(self.vocab, load_plain_tokenizer(files))
        self._executor = executor

    def outputs(self, constraints: list[Constraint], first_seed: int) -> list[str | None]:
        """A text for each constraint, sampled at temperature 1, every second one with jump-forward;
        None where the limit of tokens came first."""
        driver = Driver(
            lag=1,
            executor=self._executor,
            max_total_tokens=self._executor.max_total_tokens,
            vocab_size=self.vocab.vocab_size,
            max_running_requests=AT_ONCE,
        )
        for i, constraint in enumerate(constraints):
            sampling = FilledParams(
                max_new_tokens=60,
                temperature=1.0,
                seed=first_seed + i,
                jump_forward="off" if i % 2 else "canonical",
            )
            wire = TokenizedReq(
                client=b"c",
                rid=str(i),
                incarnation=0,
                input_ids=pack_ids(self.prompt),
                sampling=sampling,
                eos_ids=list(self.vocab.eos_ids),
            )
            grammar = self.compiler.compile(constraint).start()
            driver.core.add(wire, 0.0, grammar, self.retokeniser)
        driver.run()
        texts: list[str | None] = []
        for i in range(len(constraints)):
            finish = driver.finishes[str(i)]
            assert finish.error is None, (constraints[i], finish)
            ids = [t for t in driver.outputs.get(str(i), []) if t not in self.vocab.eos_ids]
            text = b"".join(self.vocab.token_bytes[t] for t in ids)
            texts.append(text.decode() if finish.type == "stop" else None)
        return texts


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    """Sequences, alternatives and repetitions of words, classes and characters of all sizes."""
    shape = rng.choice(["atom", "seq", "seq", "alt", "repeat", "group"]) if depth else "atom"
    if shape == "atom":
        return f"(?:{rng.choice(_ATOMS)})"
    if shape == "seq":
        return "".join(random_pattern(rng, depth - 1) for _ in range(rng.randint(2, 4)))
    if shape == "alt":
        return f"(?:{'|'.join(random_pattern(rng, depth - 1) for _ in range(rng.randint(2, 3)))})"
    if shape == "repeat":
        return f"(?:{random_pattern(rng, depth - 1)}){rng.choice(['?', '*', '+', '{2}', '{1,3}'])}"
    flags = rng.choice(["", "?:", "?i:", "?s:"])
    return f"({flags}{random_pattern(rng, depth - 1)})"


def check_patterns(lab: Lab, count: int, seed: int) -> int:
    """How many of `count` random patterns ended by themselves; all of those must match."""
    rng, ended = random.Random(seed), 0
    for start in range(0, count, AT_ONCE):
        patterns = [random_pattern(rng) for _ in range(min(AT_ONCE, count - start))]
        texts = lab.outputs([Constraint("regex", p) for p in patterns], seed + start)
        for pattern, text in zip(patterns, texts, strict=True):
            if text is not None:
                assert re.fullmatch(pattern, text, re.ASCII), (pattern, text)
                ended += 1
    return ended


@pytest.mark.parametrize(
    "count",
    [20, pytest.param(100, marks=pytest.mark.full), pytest.param(2000, marks=pytest.mark.slow)],
)
def test_outputs_match_random_patterns(lab: Lab, count: int) -> None:
    assert check_patterns(lab, count, seed=count) > count // (3 if count == 20 else 2)


def test_outputs_are_one_of_the_choices(lab: Lab) -> None:
    choices = ["Paris", "Paris, France", "Rome", "São Paulo", "東京", 'say "no"', ""]
    constraint = Constraint("choices", json.dumps(choices))
    assert set(lab.outputs([constraint] * 20, 7)) <= set(choices)


def test_outputs_are_json_of_their_schema(lab: Lab) -> None:
    properties = {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    }
    closed = {"type": "object", "additionalProperties": False}
    flat = closed | {"properties": properties, "required": list(properties)}
    nested = closed | {"properties": {"p": flat, "q": {"type": "null"}}, "required": ["p"]}
    for schema in (flat, nested):
        for text in lab.outputs([Constraint("json_schema", json.dumps(schema))] * 10, 3):
            if text is not None:
                value = json.loads(text)
                person = value.get("p", value)
                assert list(person) == list(properties)
                assert 0 <= person["age"] <= 150 and set(person["tags"]) <= {"red", "blue"}


@pytest.mark.full
def test_a_lead_in_is_free_and_what_follows_is_not(lab: Lab) -> None:
    constraint = Constraint("regex", r"\d{3}-\d{3}", after="\n")
    texts = [text for text in lab.outputs([constraint] * 20, 5) if text is not None]
    assert texts
    for text in texts:
        assert re.fullmatch(r"[^\n]*\n\d{3}-\d{3}", text), text


@pytest.mark.full
def test_the_torch_executor_takes_masks_and_jumps_too() -> None:
    pytest.importorskip("torch")
    options = ExecutorOptions(max_total_tokens=2048)
    lab = Lab(make_executor("torch", resolve_model("smollm2"), options))
    pattern = r'\{"city": "[A-Z][a-z]{2,9}", "capital": (true|false)\}'
    texts = lab.outputs([Constraint("regex", pattern)] * 4, 1)
    assert all(text is not None and re.fullmatch(pattern, text) for text in texts)
