"""Self-consistency: sample several chains of thought for one question and take the vote."""

from collections import Counter
from typing import Any

import lang as sgl

QUESTION = "Tom has 3 boxes with 4 pens each. He gives 2 pens away. How many has he left?"


SHOTS = """Question: Anna has 2 bags with 5 apples each. She eats 3 apples. How many has she left?
Reasoning: 2 bags with 5 apples each are 2 * 5 = 10 apples. She eats 3, so 10 - 3 = 7 are left.
The answer is the number 7

Question: Paul has 4 shelves with 6 books each. He sells 4 books. How many has he left?
Reasoning: 4 shelves with 6 books each are 4 * 6 = 24 books. He sells 4, so 24 - 4 = 20 are left.
The answer is the number 20

"""


@sgl.function
def reason(s: sgl.ProgramState, question: str, chains: int) -> None:
    s += f"{SHOTS}Question: {question}\n"
    forks = s.fork(chains)
    for seed, fork in enumerate(forks):
        fork += "Reasoning:" + sgl.gen("reasoning", max_tokens=48, seed=seed, stop="\n")
        fork += "\nThe answer is the number " + sgl.gen("answer", max_tokens=4, regex="[0-9]{1,3}")
    forks.join()


def main(backend: Any, question: str = QUESTION, chains: int = 5) -> dict[str, Any]:
    """The answers of all chains and the one that most of them give."""
    s = reason.run(question, chains, temperature=0.5, backend=backend)
    answers = [int(text) for text in s["answer"]]
    (vote, votes), *_ = Counter(answers).most_common()
    return {"reasoning": s["reasoning"], "answers": answers, "vote": vote, "votes": votes}


if __name__ == "__main__":
    with sgl.command_line(__doc__) as (backend, _):
        found = main(backend)
        print(*found["reasoning"], f"{found['votes']} votes for {found['vote']}", sep="\n")
