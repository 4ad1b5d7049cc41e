"""Workloads whose answers repeat what their prompts say: completions that a small model goes on
with by copying. Built-in texts, or those of a directory of JSON-lines files.

`texts` are the built-in ones, or those of `long_documents.jsonl`; passages with questions are those
of `nq_passages.jsonl`, and agents' runs those of `react_traces.jsonl`.
"""

import ast
import inspect
import json
import random
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from srt.benchmark.workloads import Node

OUT_TOKENS = 160
WORDS = range(50, 90)  # of a paragraph
EXAMPLE = '''def largest(values):
    """The largest of the values, and where it is."""
    best, place = None, -1
    for index, value in enumerate(values):
        if best is None or value > best:
            best, place = value, index
    return best, place'''
QUOTED = (
    "The ferry leaves the island at six in the morning. It calls at both villages on the way, and "
    "takes letters, milk and passengers. In a storm it stays in the harbour."
)
STDLIB = (ast, inspect, json, random, textwrap)  # whose functions are rewritten
LINES = range(8, 24)  # of a function that is rewritten
RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "city": {"type": "string", "maxLength": 24},
        "job": {"type": "string", "maxLength": 24},
        "note": {"type": "string", "maxLength": 60},
    },
    "required": ["name", "city", "job", "note"],
    "additionalProperties": False,
}
RECORDS = {"type": "array", "items": RECORD, "minItems": 4, "maxItems": 4}
NAMES = [
    "Ada",
    "Bruno",
    "Clara",
    "Dmitri",
    "Elena",
    "Farid",
    "Greta",
    "Hugo",
    "Irene",
    "Jonas",
    "Karin",
    "Luis",
    "Maria",
    "Nils",
    "Olga",
    "Pedro",
]
CITIES = [
    "Lisbon",
    "Vienna",
    "Prague",
    "Dublin",
    "Oslo",
    "Turin",
    "Basel",
    "Ghent",
    "Porto",
    "Krakow",
    "Malmo",
    "Seville",
    "Graz",
    "Leeds",
]
JOBS = [
    "baker",
    "nurse",
    "pilot",
    "miller",
    "tailor",
    "printer",
    "gardener",
    "teacher",
    "sailor",
    "glazier",
    "carpenter",
    "clerk",
]
NOTES = (
    "keeps two grey cats in the attic",
    "rides a red bicycle to work every morning",
    "has collected stamps since the age of nine",
    "plays the cello in a small orchestra on Sundays",
    "grows tomatoes on a balcony that faces south",
    "repairs old clocks for the whole street",
    "swims across the lake before breakfast in summer",
    "writes long letters to a brother in Chile",
)
FACTS = (
    ("The lighthouse", "was built on the northern cape", "to guide the herring fleet home"),
    ("The old mill", "was turned into a school", "after the river had changed its bed"),
    ("The stone bridge", "was closed for three winters", "because its middle arch had sunk"),
    ("The town library", "was moved into the former bank", "when the roof began to leak"),
    ("The harbour market", "was opened again in the spring", "once the new pier was finished"),
    ("The botanical garden", "was laid out by two sisters", "who had travelled in Asia"),
    ("The railway station", "was painted yellow and white", "for the visit of the queen"),
    ("The glass works", "was sold to a family from Bohemia", "after the great fire"),
    ("The observatory", "was given a larger telescope", "by a merchant without heirs"),
    ("The concert hall", "was rebuilt stone by stone", "from drawings found in a cellar"),
)


def functions() -> list[str]:
    """Source of plain functions of the standard library."""
    found = []
    for module in STDLIB:
        for _, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                source = textwrap.dedent(inspect.getsource(function)).rstrip()
                if source.startswith("def ") and len(source.splitlines()) in LINES:
                    found.append(source)
    return found


def rows(data: Path | None, name: str) -> Iterator[dict[str, Any]]:
    """Of a file of the directory; none if there is no such file."""
    if data is None or not (data / name).is_file():
        return
    with (data / name).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def texts(data: Path | None, rng: random.Random) -> Iterator[str]:
    """Paragraphs of prose, as many as are asked for."""
    found = []
    for row in rows(data, "long_documents.jsonl"):
        paragraphs = [" ".join(part.split()) for part in row["text"].split("\n\n")]
        found += [part for part in paragraphs if part[:1].isalpha() and len(part.split()) in WORDS]
    rng.shuffle(found)
    yield from found
    while True:
        sentences = [f"{what} {event} {why}." for what, event, why in rng.sample(FACTS, 6)]
        yield " ".join(sentences)


def edit(data: Path | None, rng: random.Random) -> Iterator[Node]:
    """A function of the standard library, again under another name."""
    for source in _forever(functions(), rng):
        name = source[len("def ") : source.index("(")]
        shown = f"{_before(EXAMPLE)}{_renamed(EXAMPLE)}\n```\n\n"
        prompt = f"{shown}{_before(source)}def {name}_v2("
        yield Node(prompt, OUT_TOKENS, fields={"stop": "```"})


def quote(data: Path | None, rng: random.Random) -> Iterator[Node]:
    """A paragraph, and then the same again, word for word."""
    for text in texts(data, rng):
        begin = " ".join(text.split()[:3])
        yield Node(
            f"Text:\n{QUOTED}\n\nThe text again, word for word:\n{QUOTED}\n\n"
            f"Text:\n{text}\n\nThe text again, word for word:\n{begin}",
            OUT_TOKENS,
            fields={"stop": "\n\nText"},
        )


def rag(data: Path | None, rng: random.Random) -> Iterator[Node]:
    """Four passages and two questions, answered with citations."""
    known = list(rows(data, "nq_passages.jsonl"))
    asked = [(row["question"], row["passage"]) for row in known] or _built_in_passages(rng)
    while True:
        chosen = rng.sample(asked, 4)
        passages = "\n".join(f"[{i + 1}] {text}" for i, (_, text) in enumerate(chosen))
        first, second, *_ = (question for question, _ in chosen)
        cited = chosen[0][1].split(". ")[0]
        begun = " ".join(chosen[1][1].split()[:3])
        yield Node(
            f"{passages}\n\nQuestion: {first}?\nPassage [1] says: {cited}.\n\n"
            f"Question: {second}?\nPassage [2] says: {begun}",
            OUT_TOKENS,
        )


def extract(data: Path | None, rng: random.Random) -> Iterator[Node]:
    """Records of four persons out of prose, as JSON that a schema constrains."""
    (shown, answer), fields = _people(rng), {"json_schema": json.dumps(RECORDS)}
    while True:
        prose, _ = _people(rng)
        yield Node(
            f"Text: {shown}\nJSON: {answer}\n\nText: {prose}\nJSON: ", OUT_TOKENS, fields=fields
        )


def react(data: Path | None, rng: random.Random) -> Iterator[Node]:
    """An agent's run so far, and its next thought and action."""
    runs = [row for row in rows(data, "react_traces.jsonl") if len(row["steps"]) > 2]
    for row in _forever(runs or _built_in_runs(rng), rng):
        text = f"Question: {row['question']}\n"
        for number, step in enumerate(row["steps"][:-1], 1):
            text += f"Thought {number}: {step['thought']}\nAction {number}: {step['action']}\n"
            text += f"Observation {number}: {step['observation']}\n"
        yield Node(f"{text}Thought {len(row['steps'])}:", OUT_TOKENS)


COPYING: dict[str, Callable[[Path | None, random.Random], Iterator[Node]]] = {
    make.__name__: make for make in (edit, quote, rag, extract, react)
}


def _before(source: str) -> str:
    """What asks for the function under another name."""
    name = source[len("def ") : source.index("(")]
    return (
        f"Code:\n```python\n{source}\n```\n\nThe whole code again, with {name} renamed to "
        f"{name}_v2:\n```python\n"
    )


def _renamed(source: str) -> str:
    head, rest = source.split("(", 1)
    return f"{head}_v2({rest}"


def _people(rng: random.Random) -> tuple[str, str]:
    """Prose about four persons, and the records in it as JSON."""
    sampled = (rng.sample(given, 4) for given in (NAMES, CITIES, JOBS, NOTES))
    found = [
        dict(zip(RECORD["properties"], one, strict=True)) for one in zip(*sampled, strict=True)
    ]
    prose = " ".join(f"{p['name']} of {p['city']} is a {p['job']}, who {p['note']}." for p in found)
    return prose, json.dumps(found, separators=(",", ":"))


def _forever(found: list[Any], rng: random.Random) -> Iterator[Any]:
    while True:
        yield from rng.sample(found, len(found))


def _built_in_passages(rng: random.Random) -> list[tuple[str, str]]:
    others = texts(None, rng)
    return [
        (f"why is it that {what.lower()} {event}", f"{what} {event} {why}. {next(others)}")
        for what, event, why in FACTS
    ]


def _built_in_runs(rng: random.Random) -> list[dict[str, Any]]:
    """Runs that search for one thing after the other."""
    runs = []
    for _ in range(16):
        chosen = rng.sample(FACTS, 4)
        steps = [
            {
                "thought": f"I need to search {what} and find out why it {event}.",
                "action": f"Search[{what}]",
                "observation": f"{what} {event} {why}.",
            }
            for what, event, why in chosen
        ]
        wanted = ", ".join(what for what, _, _ in chosen)
        runs.append({"question": f"What happened to {wanted}, and why?", "steps": steps})
    return runs
