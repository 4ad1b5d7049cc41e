"""Extract an object from a text: the schema of a Struct constrains the answer and decodes it."""

import argparse
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

import lang as sgl

TEXT = """Lise Meitner, a physicist, was born in 1878 in Vienna. She worked in Berlin and Stockholm,
and was given the Enrico Fermi award."""

Words = Annotated[str, msgspec.Meta(max_length=40)]


class Person(msgspec.Struct):
    """What is looked for."""

    name: Words
    birthplace: Words
    birth_year: Annotated[int, msgspec.Meta(ge=1000, le=2100)]
    field: Literal["physics", "chemistry", "mathematics", "biology"]
    prizes: Annotated[list[Words], msgspec.Meta(max_length=3)]


EXAMPLES = {
    "Leonhard Euler was a mathematician, born in Basel in 1707. He worked in Berlin and won the "
    "Paris prize.": Person("Leonhard Euler", "Basel", 1707, "mathematics", ["Paris prize"]),
    "Charles Darwin was a biologist, born in Shrewsbury in 1809. He sailed around the world and "
    "won the Copley medal.": Person(
        "Charles Darwin", "Shrewsbury", 1809, "biology", ["Copley medal"]
    ),
}


@sgl.function
def extract(s: sgl.ProgramState, text: str) -> None:
    s += sgl.system("You write down facts as JSON.")
    for example, person in EXAMPLES.items():
        s += sgl.user(example) + sgl.assistant(msgspec.json.encode(person).decode())
    s += sgl.user(text)
    s += sgl.assistant(sgl.gen("person", max_tokens=200, schema=Person))


def main(backend: Any, text: str = TEXT) -> Person:
    """The person that the text is about, as far as the model understands it."""
    s = extract.run(text, temperature=0, backend=backend)
    person: Person = s["person"]
    return person


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a file with another text")
    with sgl.command_line(parser) as (backend, options):
        print(main(backend, options.data.read_text() if options.data else TEXT))
