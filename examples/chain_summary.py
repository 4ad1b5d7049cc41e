"""A summary of a long text, part by part, as one program on the server: no round trips between."""

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


@sgl.function
def add(s: Any, part: str, so_far: Any) -> None:
    s += f"Text: {part}\n"
    if so_far is not None:
        s += "Summary so far:" + so_far + "\n"
    s += "New summary:" + sgl.gen("summary", max_tokens=24, stop="\n", temperature=0)


def main(backend: Any, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """The last summary, and the one after each part."""
    with sgl.session(backend, eager=True) as app:
        summaries: list[Any] = []
        for part in parts:
            so_far = summaries[-1] if summaries else None
            summaries.append(add.submit(part=part, so_far=so_far)["summary"])
        app.flush()
        final = summaries[-1].get(perf="latency")
        return {"summary": final, "steps": [summary.get() for summary in summaries]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(json.dumps(main(backend), indent=2))
