"""Summaries of parts and one of these, as semantic functions: the join is the server's."""

from collections.abc import Sequence
from typing import Any

import lang as sgl

SHORT: dict[str, Any] = {"max_tokens": 48, "stop": "\n", "temperature": 0}
PARTS = (
    "The lighthouse was built in 1911 on a rock two miles off the coast, of local granite.",
    "Its first keeper lived there for thirty years and wrote down the weather every evening.",
    "Today it is a small museum of storms, and its lamp is electric.",
)


@sgl.semantic_function
def summarise(  # type: ignore[no-untyped-def]
    part: sgl.Input,
    summary: sgl.Output(**SHORT),  # type: ignore[valid-type]
):
    """Text: The mill was built in 1820 from oak, beside the old bridge of the town.
    In short: The mill was built in 1820.

    Text: Now it stands empty beside the river, and only swallows and some bats live there.
    In short: Now it stands empty.

    Text: {{part}}
    In short:{{summary}}"""


@sgl.semantic_function
def merge(  # type: ignore[no-untyped-def]
    summaries: sgl.Input,
    total: sgl.Output(**SHORT),  # type: ignore[valid-type]
):
    """Notes:
     The mill was built in 1820.
     Its owner lived there for sixty years.
     Now it stands empty.
    All: The mill was built in 1820, its owner lived there for sixty years, and now it is empty.

    Notes:
     The school was opened in 1955.
     Its first class had twelve pupils.
     Today it is a hotel.
    All: The school was opened in 1955, its first class had twelve pupils, and today it is a hotel.

    Notes:
    {{summaries}}
    All:{{total}}"""


def main(backend: Any, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """The summary of all, and those of the parts; one submission."""
    with sgl.session(backend) as app:
        maps = [summarise(part=part) for part in parts]
        total = merge(summaries=app.concat(maps, "\n"))
        return {"summary": total.get(), "parts": [each.get() for each in maps]}


if __name__ == "__main__":
    with sgl.command_line(__doc__) as (backend, _):
        found = main(backend)
        print(*(f"part:{text}" for text in found["parts"]), f"all:{found['summary']}", sep="\n")
