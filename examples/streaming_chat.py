"""A chat that prints the answer while it is being written."""

import argparse
from collections.abc import Callable
from typing import Any

import lang as sgl

TURNS = ("Tell me about the moon.", "And about the sun?")


@sgl.function
def chat(s: sgl.ProgramState, turns: tuple[str, ...]) -> None:
    s += sgl.system("You are a helpful assistant.")
    for number, text in enumerate(turns):
        s += sgl.user(text)
        s += sgl.assistant(sgl.gen(f"answer_{number}", max_tokens=32))


def show(text: str) -> None:
    print(text, end="", flush=True)


def main(
    backend: Any, turns: tuple[str, ...] = TURNS, write: Callable[[str], None] = show
) -> list[str]:
    """The answers; `write` gets their text piece by piece as it arrives."""
    s = chat.run(turns, temperature=0, stream=True, backend=backend)
    answers = []
    for number, text in enumerate(turns):
        write(f"> {text}\n")
        for piece in s.text_iter(f"answer_{number}"):
            write(piece)
        write("\n")
        answers.append(s[f"answer_{number}"])
    return answers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        main(backend)
