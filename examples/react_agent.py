"""A ReAct agent with a calculator and a local search; constraints keep its actions possible."""

from typing import Any

import lang as sgl

NOTES = {
    "lighthouse": "The lighthouse of Farhaven has 7 floors of 6 metres each.",
    "bakery": "The bakery of Farhaven has 4 ovens of 30 loaves each.",
    "theatre": "The theatre of Farhaven has 12 rows of 20 seats each.",
}
QUESTION = "How many metres high is the lighthouse?"
EXAMPLES = """Question: How many loaves does the bakery sell?
Thought: I look for the bakery.
Action: search[bakery]
Observation: The bakery of Farhaven has 4 ovens of 30 loaves each.
Thought: 4 ovens of 30 loaves each are 4 * 30 loaves.
Action: calculate[4 * 30]
Observation: 120
Thought: I know the answer.
Action: finish[120 loaves]

Question: How many seats has the theatre?
Thought: I look for the theatre.
Action: search[theatre]
Observation: The theatre of Farhaven has 12 rows of 20 seats each.
Thought: 12 rows of 20 seats each are 12 * 20 seats.
Action: calculate[12 * 20]
Observation: 240
Thought: I know the answer.
Action: finish[240 seats]
"""
TOOLS = {
    "search": sgl.select("input", list(NOTES)),
    "calculate": sgl.gen("input", max_tokens=16, regex=r"[0-9]{1,4} [+*] [0-9]{1,4}\]", stop="]"),
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
    s += f"{EXAMPLES}\nQuestion: {question}\n"
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
    with sgl.command_line(__doc__) as (backend, _):
        for step in main(backend):
            print(f"{step['thought'].strip()} {step['tool']}[{step['input']}]")
