"""A ReAct agent with a calculator and a local search; constraints keep its actions possible."""

import argparse
from typing import Any

import lang as sgl

NOTES = {
    "lighthouse": "The lighthouse of Farhaven has 7 floors of 6 metres each.",
    "bakery": "The bakery of Farhaven sells 300 loaves a day.",
}
QUESTION = "How high is the lighthouse of Farhaven?"
EXAMPLE = """Question: How many loaves does the bakery sell in 2 days?
Thought: It sells 300 a day, so I multiply.
Action: calculate[300 * 2]
Observation: 600
Thought: I know the answer.
Action: finish[600 loaves]
"""
TOOLS = {
    "search": sgl.select("input", list(NOTES)),
    "calculate": sgl.gen("input", max_tokens=16, regex=r"[0-9]{1,4} [+*] [0-9]{1,4}"),
    "finish": sgl.gen("input", max_tokens=12, stop=["]", "\n"]),
}


def observe(tool: str, given: str) -> str:
    if tool == "search":
        return NOTES[given]
    left, sign, right = given.split()
    return str(int(left) * int(right) if sign == "*" else int(left) + int(right))


@sgl.function
def agent(s: sgl.ProgramState, question: str, max_steps: int) -> list[dict[str, str]]:
    steps: list[dict[str, str]] = []
    s += f"{EXAMPLE}\nQuestion: {question}\n"
    while len(steps) < max_steps and (not steps or steps[-1]["tool"] != "finish"):
        tools = list(TOOLS)[: 3 if steps else 2] if len(steps) + 1 < max_steps else ["finish"]
        s += "Thought:" + sgl.gen("thought", max_tokens=24, stop="\n")
        s += "\nAction: " + sgl.select("tool", tools)
        s += "[" + TOOLS[s["tool"]] + "]\n"
        steps.append({name: s[name] for name in ("thought", "tool", "input")})
        if s["tool"] != "finish":
            s += f"Observation: {observe(s['tool'], s['input'])}\n"
    return steps


def main(backend: Any, max_steps: int = 4) -> list[dict[str, str]]:
    """The steps taken; the last one's input is the answer."""
    return list(agent.run(QUESTION, max_steps, temperature=0, backend=backend).ret_value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(*main(backend), sep="\n")
