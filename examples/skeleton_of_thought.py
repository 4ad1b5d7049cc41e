"""Skeleton of thought: write the points first, then expand all of them at the same time.

Each point is expanded by a program of its own that runs beside the others; the programs begin
with the same text, so they share what is computed for it.
"""

import argparse
import json
from typing import Any

import lang as sgl

TOPIC = "how to learn to play the piano"
SKELETON = r"1\. [A-Za-z ]{4,30}\n2\. [A-Za-z ]{4,30}\n3\. [A-Za-z ]{4,30}\n"


@sgl.function
def expand(s: sgl.ProgramState, topic: str, skeleton: str, point: str) -> None:
    s += sgl.system("You expand one point of an article into two short sentences.")
    s += sgl.user(f"Article on {topic}.\nPoints:\n{skeleton}\nExpand this point: {point}")
    s += sgl.assistant(sgl.gen("text", max_tokens=40, stop="\n\n"))


@sgl.function
def write(s: sgl.ProgramState, topic: str) -> list[dict[str, Any]]:
    s += sgl.user(f"List three points of an article on {topic}.")
    s += sgl.assistant(sgl.gen("skeleton", max_tokens=64, regex=SKELETON))
    points = [line.partition(". ")[2] for line in s["skeleton"].splitlines()]
    parts = [expand(topic, s["skeleton"], point, temperature=0) for point in points]
    return [
        {
            "point": point,
            "text": part["text"],
            "cached_tokens": sum(call.cached_tokens for call in part.trace()),
        }
        for point, part in zip(points, parts, strict=True)
    ]


def main(backend: Any, topic: str = TOPIC) -> list[dict[str, Any]]:
    """The points with their texts."""
    parts: list[dict[str, Any]] = write.run(topic, temperature=0, backend=backend).ret_value
    return parts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    parser.add_argument("--topic", default=TOPIC)
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(json.dumps(main(backend, args.topic), indent=2))
