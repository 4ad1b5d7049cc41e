"""An architect, coders and reviewers write a small program in rounds, on the server."""

import argparse
import json
from typing import Any

import lang as sgl

TASK = "a snake game in Python"
FILES = ("board.py", "snake.py")
CODE: dict[str, Any] = {"max_tokens": 32, "temperature": 0}


@sgl.function
def design(s: Any, task: str) -> None:
    s += f"We write {task}. The architect's plan in one line:"
    s += sgl.gen("plan", max_tokens=24, stop="\n", temperature=0)


@sgl.function
def write(s: Any, task: str, plan: Any, file: str) -> None:
    s += f"We write {task}. The plan:"
    s += plan
    s += f"\n# {file}\n" + sgl.gen("code", **CODE)


@sgl.function
def review(s: Any, task: str, files: Any, file: str) -> None:
    """A reviewer sees all files; the coder writes this one again."""
    s += f"We write {task}. All files so far:\n"
    s += files
    s += f"\nReview of {file}:" + sgl.gen("review", max_tokens=16, stop="\n", temperature=0)
    s += f"\n# {file}, improved\n" + sgl.gen("code", **CODE)


def main(backend: Any, rounds: int = 2) -> dict[str, Any]:
    """The plan, and each file after the last round; all of it is one program."""
    with sgl.session(backend) as app:
        plan = design.submit(task=TASK)["plan"]
        files = [write.submit(task=TASK, plan=plan, file=file)["code"] for file in FILES]
        for _ in range(rounds):
            everything = app.concat(files, "\n\n")
            files = [
                review.submit(task=TASK, files=everything, file=file)["code"] for file in FILES
            ]
        codes = [code.get() for code in files]
        return {"plan": plan.get(), "files": dict(zip(FILES, codes, strict=True))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(json.dumps(main(backend), indent=2))
