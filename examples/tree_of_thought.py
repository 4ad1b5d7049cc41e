"""Tree of thought: fork into plans, each plan into solutions, score them all, keep the best."""

import argparse
import json
from typing import Any

import lang as sgl

QUESTION = "A farmer has 12 cows and sells a third of them. How many cows are left?"


@sgl.function
def search(s: sgl.ProgramState, question: str, width: int) -> list[dict[str, Any]]:
    s += sgl.user(f"Question: {question}\nPropose a plan to solve it, in one sentence.")
    plans = s.fork(width)
    plans += sgl.assistant(sgl.gen("plan", max_tokens=24, stop="\n"))
    plans += sgl.user("Follow the plan and give the solution in one sentence.")
    leaves = []
    for plan in plans:
        solutions = plan.fork(width)
        solutions += sgl.assistant(sgl.gen("solution", max_tokens=32, stop="\n"))
        solutions += sgl.user("How good is this solution, from 1 to 5? Answer with a number.")
        solutions += sgl.assistant(sgl.select("score", ["1", "2", "3", "4", "5"]))
        leaves += [(plan, solution) for solution in solutions]
    return [
        {
            "plan": plan["plan"],
            "solution": solution["solution"],
            "score": int(solution["score"]),
            "cached_tokens": next(iter(solution.trace())).cached_tokens,
        }
        for plan, solution in leaves
    ]


def main(backend: Any, question: str = QUESTION, width: int = 2) -> dict[str, Any]:
    """All leaves of the tree and the best of them."""
    state = search.run(question, width, temperature=0.7, backend=backend)
    leaves = state.ret_value
    return {"leaves": leaves, "best": max(leaves, key=lambda leaf: leaf["score"])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    parser.add_argument("--width", type=int, default=2)
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(json.dumps(main(backend, width=args.width), indent=2))
