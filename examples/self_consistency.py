"""Self-consistency: sample several chains of thought for one question and take the vote."""

import argparse
import json
from collections import Counter
from typing import Any

import lang as sgl

QUESTION = "Tom has 3 boxes with 4 pens each. He gives 2 pens away. How many pens has he left?"


@sgl.function
def reason(s: sgl.ProgramState, question: str, chains: int) -> None:
    s += f"Question: {question}\nThink step by step.\n"
    forks = s.fork(chains)
    for seed, fork in enumerate(forks):
        fork += "Reasoning:" + sgl.gen("reasoning", max_tokens=40, seed=seed, stop="\n\n")
        fork += "\nThe answer is the number " + sgl.gen("answer", max_tokens=4, regex="[0-9]{1,3}")
    forks.join()


def main(backend: Any, question: str = QUESTION, chains: int = 5) -> dict[str, Any]:
    """The answers of all chains and the one that most of them give."""
    s = reason.run(question, chains, temperature=0.7, backend=backend)
    answers = [int(text) for text in s["answer"]]
    (vote, votes), *_ = Counter(answers).most_common()
    return {"reasoning": s["reasoning"], "answers": answers, "vote": vote, "votes": votes}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    parser.add_argument("--chains", type=int, default=5)
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(json.dumps(main(backend, chains=args.chains), indent=2))
