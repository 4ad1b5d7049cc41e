"""Answer questions after a few worked examples.

All programs of the batch begin with the same examples. The runtime finds this constant beginning
and computes it once, before the batch.
"""

import argparse
from pathlib import Path
from typing import Any

import lang as sgl

SHOTS = (
    ("What is the capital of Italy?", "Rome"),
    ("Which planet is known as the red planet?", "Mars"),
    ("How many legs does a spider have?", "8"),
    ("What gas do plants take in from the air?", "carbon dioxide"),
    ("Who wrote the play Hamlet?", "William Shakespeare"),
)
EXAMPLES = "".join(f"Question: {question}\nAnswer: {answer}\n\n" for question, answer in SHOTS)
QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Japan?",
    "What do bees make?",
    "What is the frozen form of water called?",
)


@sgl.function
def answer(s: sgl.ProgramState, question: str) -> None:
    s += EXAMPLES
    s += f"Question: {question}\nAnswer:" + sgl.gen("answer", max_tokens=12, stop="\n")


def main(backend: Any, questions: tuple[str, ...] = QUESTIONS) -> list[dict[str, Any]]:
    """Each question with its answer and the number of tokens that came from the cache."""
    arguments = [{"question": question} for question in questions]
    states = answer.run_batch(arguments, temperature=0, backend=backend, progress_bar=False)
    return [
        {
            "question": question,
            "answer": s["answer"].strip(),
            "cached_tokens": sum(call.cached_tokens for call in s.trace()),
        }
        for question, s in zip(questions, states, strict=True)
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a file with one question a line")
    with sgl.command_line(parser) as (backend, options):
        asked = tuple(options.data.read_text().splitlines()) if options.data else QUESTIONS
        for found in main(backend, asked):
            print(f"{found['question']} {found['answer']} [{found['cached_tokens']} tokens cached]")
