"""Skeleton of thought: write the points first, then expand all of them at the same time.

Each point is expanded by a program of its own that runs beside the others; the programs begin
with the same text, so they share what is computed for it.
"""

import argparse
from typing import Any

import lang as sgl

TOPIC = "how to learn to play the piano"
EXAMPLE = "how to bake bread"
POINTS = "1. Choose good flour\n2. Give the dough time\n3. Heat the oven well\n"
SKELETON = r"1\. [A-Za-z ]{4,30}\n2\. [A-Za-z ]{4,30}\n3\. [A-Za-z ]{4,30}\n"


@sgl.function
def expand(s: sgl.ProgramState, topic: str, point: str) -> None:
    s += sgl.system("You expand one point of an article into one short sentence.")
    s += sgl.user(f"Article on {EXAMPLE}.\nExpand this point: Give the dough time")
    s += sgl.assistant("Give the dough time, because dough that rests overnight tastes better.")
    s += sgl.user(f"Article on {topic}.\nExpand this point: {point}")
    s += sgl.assistant(f"{point}, because" + sgl.gen("text", max_tokens=48, stop=["\n", "."]))


@sgl.function
def write(s: sgl.ProgramState, topic: str) -> list[dict[str, Any]]:
    s += sgl.user(f"List three points of an article on {EXAMPLE}.") + sgl.assistant(POINTS)
    s += sgl.user(f"List three points of an article on {topic}.")
    s += sgl.assistant(sgl.gen("skeleton", max_tokens=64, regex=SKELETON))
    points = [line.partition(". ")[2] for line in s["skeleton"].splitlines()]
    parts = [expand(topic, point, temperature=0) for point in points]
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
    parser.add_argument("--topic", default=TOPIC)
    with sgl.command_line(parser) as (backend, options):
        for part in main(backend, options.topic):
            print(
                f"{part['point']}, because{part['text']}. [{part['cached_tokens']} tokens cached]"
            )
