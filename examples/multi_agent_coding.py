"""An architect, coders and reviewers write a small program in rounds, on the server.

Regexes keep what they write to functions of one expression.
"""

from typing import Any

import lang as sgl

TASK = "box"
FILES = ("area(width, height)", "volume(width, height, depth)")
EXAMPLE = """# circle: each function takes the radius
# diameter(radius)
def diameter(radius):
    return 2 * radius

"""
REVIEWED = '''# review of diameter(radius)
def diameter(radius):
    """Return the diameter of a circle."""
    return 2 * radius

'''
HEAD, BODY = r"def [a-z_]+\([a-z, ]+\):\n", r"    return [a-z0-9 ()*+/-]{1,40}\n"
DOCUMENTED = HEAD + r'    """[A-Z][a-z ]{10,50}\."""\n' + BODY
SHORT: dict[str, Any] = {"max_tokens": 64, "temperature": 0}


@sgl.function
def design(s: Any, task: str) -> None:
    s += f"{EXAMPLE}# {task}:" + sgl.gen("plan", stop="\n", **SHORT)


@sgl.function
def write(s: Any, task: str, plan: Any, file: str) -> None:
    s += f"{EXAMPLE}# {task}:"
    s += plan
    s += f"\n# {file}\n" + sgl.gen("code", regex=HEAD + BODY, **SHORT)


@sgl.function
def review(s: Any, task: str, files: Any, file: str) -> None:
    """A reviewer sees all functions, and writes this one again."""
    s += f"{EXAMPLE}{REVIEWED}# {task}\n"
    s += files
    s += f"\n# review of {file}\n" + sgl.gen("code", regex=DOCUMENTED, **SHORT)


def main(backend: Any, rounds: int = 1) -> dict[str, Any]:
    """The plan, and each function after the last round; all of it is one program."""
    with sgl.session(backend) as app:
        plan = design.submit(task=TASK)["plan"]
        codes = [write.submit(task=TASK, plan=plan, file=file)["code"] for file in FILES]
        for _ in range(rounds):
            everything = app.concat(codes, "\n")
            reviews = [review.submit(task=TASK, files=everything, file=file) for file in FILES]
            codes = [each["code"] for each in reviews]
        found = [code.get() for code in codes]
        return {"plan": plan.get(), "files": dict(zip(FILES, found, strict=True))}


if __name__ == "__main__":
    with sgl.command_line(__doc__) as (backend, _):
        found = main(backend)
        print(f"#{found['plan']}\n", *found["files"].values(), sep="\n")
