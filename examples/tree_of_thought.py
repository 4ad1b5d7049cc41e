"""Tree of thought: fork into plans, each plan into solutions, score them all, keep the best."""

from typing import Any

import lang as sgl

QUESTION = "a café by the sea"
EXAMPLES = """Place: a bakery in an old mill
Idea: a wheel that turned for a hundred years
Name: The Turning Loaf
Does it fit, from 1 to 5? 5

Place: a shop for old watches
Idea: hands that never stop to move
Name: The Yellow Banana
Does it fit, from 1 to 5? 1

Place: a library for travellers
Idea: maps of countries that are far away
Name: The Folded Map
Does it fit, from 1 to 5? 4

"""
GRADES = ("1", "2", "3", "4", "5")
IDEA = r" a [a-z ]{10,50}\n"
NAME = r" The [A-Z][a-z]{2,9} (Anchor|Boat|Gull|Lantern|Pearl|Sail|Shell|Wave)\n"


@sgl.function
def search(s: sgl.ProgramState, question: str, width: int) -> list[dict[str, Any]]:
    s += f"{EXAMPLES}Place: {question}\nIdea:"
    plans = s.fork(width)
    plans += sgl.gen("plan", max_tokens=24, regex=IDEA) + "Name:"
    leaves = []
    for plan in plans:
        solutions = plan.fork(width)
        solutions += sgl.gen("solution", max_tokens=16, regex=NAME) + "Does it fit, from 1 to 5? "
        solutions += sgl.distribution("fit", GRADES)
        leaves += [(plan, solution) for solution in solutions]
    return [
        {
            "plan": plan["plan"].strip(),
            "solution": solution["solution"].strip(),
            "score": sum(int(grade) * p for grade, p in solution["fit"].items()),
            "cached_tokens": next(iter(solution.trace())).cached_tokens,
        }
        for plan, solution in leaves
    ]


def main(backend: Any, question: str = QUESTION, width: int = 2) -> dict[str, Any]:
    """All leaves of the tree and the best of them."""
    state = search.run(question, width, temperature=0.5, backend=backend)
    leaves = state.ret_value
    return {"leaves": leaves, "best": max(leaves, key=lambda leaf: leaf["score"])}


if __name__ == "__main__":
    with sgl.command_line(__doc__) as (backend, _):
        found = main(backend)
        for leaf in found["leaves"]:
            print(f"{leaf['score']:.2f}: {leaf['plan']} -> {leaf['solution']}")
        print("best:", found["best"]["solution"])
