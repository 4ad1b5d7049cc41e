"""Retrieval-augmented answers: find the passages that share rare words with the question.

The instructions come first and the passages in the order of the corpus, so that questions which
find the same passages share the longest beginning.
"""

import math
import re
from typing import Any

import lang as sgl

CORPUS = (
    "The Corvin bridge was built in 1911 from stone of the local quarry and has five arches.",
    "Every May the people of Corvin race small wooden boats on the river for the silver oar.",
    "The library of Corvin keeps 40,000 books and a globe that is older than the town hall.",
    "The quarry of Corvin closed in 1954 and is now a lake where children learn to swim.",
    "Corvin has a market on Saturdays, where farmers sell cheese, apples and honey.",
)
EXAMPLES = """Answer the question from the passages.

Passages:
The mill of Corvin was built in 1820.
The school of Corvin has two hundred pupils and a garden.
Question: When was the mill built?
Answer: in 1820

Passages:
The mayor of Corvin is a baker.
The church of Corvin has a red roof.
Question: What is red?
Answer: the roof of the church

"""
QUESTIONS = ("When was the bridge built?", "What is the quarry now?")


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def retrieve(question: str, corpus: tuple[str, ...], k: int = 2) -> list[str]:
    """The `k` best passages, in the order of the corpus; rare words count more than common ones."""

    def score(passage: str) -> float:
        shared = words(question) & words(passage)
        return sum(math.log(len(corpus) / sum(w in words(p) for p in corpus)) for w in shared)

    best = sorted(corpus, key=score, reverse=True)[:k]
    return [passage for passage in corpus if passage in best]


@sgl.function
def answer(s: sgl.ProgramState, question: str, passages: list[str]) -> None:
    s += f"{EXAMPLES}Passages:\n" + "\n".join(passages) + f"\nQuestion: {question}\nAnswer:"
    s += sgl.gen("answer", max_tokens=32, stop="\n")


def main(backend: Any, corpus: tuple[str, ...] = CORPUS) -> list[dict[str, Any]]:
    """Each question with the passages found and the answer."""
    found = [{"question": q, "passages": retrieve(q, corpus)} for q in QUESTIONS]
    states = answer.run_batch(found, temperature=0, backend=backend)
    return [f | {"answer": s["answer"]} for f, s in zip(found, states, strict=True)]


if __name__ == "__main__":
    with sgl.command_line(__doc__) as (backend, _):
        for found in main(backend):
            print(found["question"] + found["answer"])
