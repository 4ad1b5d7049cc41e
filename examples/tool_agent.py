"""An agent that calls Python functions until it knows the answer; constraints keep calls valid."""

import argparse
from typing import Annotated, Any, Literal

from msgspec import Meta

import lang as sgl

NOTES = {
    "lighthouse": "The lighthouse of Farhaven has 7 floors of 6 metres each.",
    "bakery": "The bakery of Farhaven sells 300 loaves a day.",
}
QUESTION = "How many metres high is the lighthouse of Farhaven?"
EXAMPLE = [
    ('{"tool":"search","arguments":{"place":"bakery"}}', NOTES["bakery"]),
    ('{"tool":"calculate","arguments":{"left":300,"sign":"*","right":2}}', "600"),
]
Number = Annotated[int, Meta(ge=0, le=9999)]


def search(place: Literal["lighthouse", "bakery"]) -> str:
    """What is known of a place in Farhaven."""
    return NOTES[place]


def calculate(left: Number, sign: Literal["+", "*"], right: Number) -> int:
    """Add or multiply two numbers."""
    return left * right if sign == "*" else left + right


@sgl.function
def agent(s: sgl.ProgramState, question: str, max_calls: int) -> dict[str, Any]:
    tools = [search, calculate]
    s += sgl.system(sgl.describe(tools))
    s += sgl.user("How many loaves does the bakery of Farhaven sell in two days?")
    for call, result in EXAMPLE:
        s += sgl.assistant(call) + sgl.tool(result)
    s += sgl.assistant('{"answer":600}')
    s += sgl.user(question)
    s += sgl.agent("metres", tools, min_calls=1, max_calls=max_calls, type=Number)
    meta = s.get_meta_info("metres") or {}
    return {"metres": s["metres"], "calls": meta["calls"]}


def main(backend: Any, max_calls: int = 3) -> dict[str, Any]:
    """The answer, and the calls that led to it."""
    return dict(agent.run(QUESTION, max_calls, temperature=0, backend=backend).ret_value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        found = main(backend)
        print(*found["calls"], found["metres"], sep="\n")
