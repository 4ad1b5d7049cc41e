"""Summaries of parts and one of these, as semantic functions: the join is the server's."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

import lang as sgl

PARTS = (
    "The lighthouse was built in 1911 on a rock two miles off the coast, of local granite.",
    "Its first keeper lived there for thirty years and wrote down the weather every evening.",
    "Today the lamp is electric, and the keeper's house is a small museum of storms.",
)
SHORT: dict[str, Any] = {"max_tokens": 24, "stop": "\n", "temperature": 0}


@sgl.semantic_function
def summarise(  # type: ignore[no-untyped-def]
    part: sgl.Input,
    summary: sgl.Output(**SHORT),  # type: ignore[valid-type]
):
    """Text: {{part}}
    In one sentence:{{summary}}"""


@sgl.semantic_function
def merge(  # type: ignore[no-untyped-def]
    summaries: sgl.Input,
    total: sgl.Output(**SHORT),  # type: ignore[valid-type]
):
    """Notes:
    {{summaries}}
    All in one sentence:{{total}}"""


def main(backend: Any, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """The summary of all, and those of the parts; one submission."""
    with sgl.session(backend) as app:
        maps = [summarise(part=part) for part in parts]
        total = merge(summaries=app.concat(maps, "\n"))
        return {"summary": total.get(), "parts": [each.get() for each in maps]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(json.dumps(main(backend), indent=2))
