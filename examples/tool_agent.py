"""An agent that calls Python functions until it knows the answer; constraints keep calls valid."""

from typing import Annotated, Any

from msgspec import Meta

import lang as sgl

QUESTION = "A theatre has 73 rows with 46 seats in each. How many seats has it?"
# A question, what the model should call, and what that returns.
EXAMPLES = (
    ("Ben has 12 pens, and finds 25 pens more. How many pens has he?", "add", (12, 25), 37),
    ("A bakery has 4 ovens with 30 loaves in each. How many loaves?", "multiply", (4, 30), 120),
)
Number = Annotated[int, Meta(ge=0, le=9999)]


def add(left: Number, right: Number) -> int:
    """Add two numbers."""
    return left + right


def multiply(left: Number, right: Number) -> int:
    """Multiply two numbers."""
    return left * right


@sgl.function
def agent(s: sgl.ProgramState, question: str, max_calls: int) -> dict[str, Any]:
    tools = [add, multiply]
    s += sgl.system(sgl.describe(tools))
    for example, tool, (left, right), result in EXAMPLES:
        s += sgl.user(example)
        call = f'{{"tool":"{tool}","arguments":{{"left":{left},"right":{right}}}}}'
        s += sgl.assistant(call) + sgl.tool(str(result)) + sgl.assistant(f'{{"answer":{result}}}')
    s += sgl.user(question)
    s += sgl.agent("number", tools, min_calls=1, max_calls=max_calls, type=Number)
    meta = s.get_meta_info("number") or {}
    return {"number": s["number"], "calls": meta["calls"]}


def main(backend: Any, max_calls: int = 2) -> dict[str, Any]:
    """The answer, and the calls that led to it."""
    return dict(agent.run(QUESTION, max_calls, temperature=0, backend=backend).ret_value)


if __name__ == "__main__":
    with sgl.command_line(__doc__) as (backend, _):
        found = main(backend)
        print(QUESTION)
        for call in found["calls"]:
            print(call["tool"], call["arguments"], "->", call["result"])
        print("answer:", found["number"])
