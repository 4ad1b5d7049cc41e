"""A chat that prints the answer while it is being written."""

from collections.abc import Callable
from typing import Any

import lang as sgl

TURNS = ("Write one sentence about the moon.", "And one about the sun.")


@sgl.function
def chat(s: sgl.ProgramState, turns: tuple[str, ...]) -> None:
    s += sgl.system("You are a helpful assistant.")
    for number, text in enumerate(turns):
        s += sgl.user(text)
        s += sgl.assistant(sgl.gen(f"answer_{number}", max_tokens=64))


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
    with sgl.command_line(__doc__) as (backend, _):
        main(backend)
