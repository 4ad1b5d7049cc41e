"""Extract an object from a text: the schema of a Struct constrains the answer and decodes it."""

import argparse
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

import lang as sgl

TEXT = """Marie Curie was a physicist, born in Warsaw in 1867. She studied in Paris, discovered
radium and polonium together with her husband Pierre, and won two Nobel prizes."""

Words = Annotated[str, msgspec.Meta(max_length=40)]


class Person(msgspec.Struct):
    """What is looked for."""

    name: Words
    birthplace: Words
    birth_year: Annotated[int, msgspec.Meta(ge=1000, le=2100)]
    field: Literal["physics", "chemistry", "mathematics", "biology"]
    prizes: Annotated[list[Words], msgspec.Meta(max_length=3)]


@sgl.function
def extract(s: sgl.ProgramState, text: str) -> None:
    s += sgl.user(f"{text}\n\nWrite down the facts about this person as JSON.")
    s += sgl.assistant(sgl.gen("person", max_tokens=200, schema=Person))


def main(backend: Any, text: str = TEXT) -> Person:
    """The person that the text is about, as far as the model understands it."""
    s = extract.run(text, temperature=0, backend=backend)
    person: Person = s["person"]
    return person


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    parser.add_argument("--data", type=Path, help="a file with another text")
    args = parser.parse_args()
    text = args.data.read_text() if args.data else TEXT
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(main(backend, text))
