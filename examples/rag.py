"""Retrieval-augmented answers: find the passages that share rare words with the question.

The instructions come first and the passages in the order of the corpus, so that questions which
find the same passages share the longest beginning.
"""

import argparse
import json
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
QUESTIONS = ("When was the Corvin bridge built?", "What became of the quarry?")


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
    s += sgl.system("You answer from the passages that you are given, in one short sentence.")
    s += sgl.user("Passages:\n" + "\n".join(passages) + f"\n\nQuestion: {question}")
    s += sgl.assistant(sgl.gen("answer", max_tokens=32, stop="\n"))


def main(backend: Any, corpus: tuple[str, ...] = CORPUS) -> list[dict[str, Any]]:
    """Each question with the passages found and the answer."""
    found = [{"question": q, "passages": retrieve(q, corpus)} for q in QUESTIONS]
    states = answer.run_batch(found, temperature=0, backend=backend)
    return [f | {"answer": s["answer"]} for f, s in zip(found, states, strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(json.dumps(main(backend), indent=2))
