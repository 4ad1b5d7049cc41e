"""Two tips, expanded in parallel by forks of the same state, then summed up."""

import argparse
import json
from typing import Any

import lang as sgl

TOPIC = "staying healthy"


@sgl.function
def tips(s: sgl.ProgramState, topic: str) -> None:
    s += f"Here are two tips for {topic}: 1. Eat well. 2. Exercise regularly.\n\n"
    forks = s.fork(2)
    for number, fork in enumerate(forks, start=1):
        fork += f"Now, expand tip {number} into a paragraph:\n"
        fork += sgl.gen("detail", max_tokens=48, stop="\n\n")
    s += f"Tip 1: {forks[0]['detail']}\nTip 2: {forks[1]['detail']}\n"
    s += "In summary," + sgl.gen("summary", max_tokens=32, stop="\n")


def main(backend: Any, topic: str = TOPIC) -> dict[str, Any]:
    """The whole text, the summary, and how many tokens each fork took from the cache."""
    s = tips.run(topic, temperature=0, backend=backend)
    cached = [call.cached_tokens for call in s.trace() if call.name == "detail"]
    return {"text": s.text(), "summary": s["summary"], "cached_tokens": cached}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(json.dumps(main(backend), indent=2))
