"""Judge an essay: branch, solve, merge.

One branch per dimension judges the same essay, whose tokens are computed once. The judgments are
merged into a summary and a grade, and the verdict is JSON because a regex says so. With `--image`
the essay is about that image, for models that can see.
"""

import argparse
import json
from typing import Any

import lang as sgl

EXAMPLE = (
    "School should begin at nine. For two weeks I asked my class each morning who was tired: every "
    "second pupil was. Parents would have to leave for work later. But pupils who sleep learn."
)
ESSAY = (
    "City trees are worth more than they cost. A street with old trees is several degrees cooler "
    "on a summer afternoon, its shops see more visitors, and its drains flood less often. I "
    "counted birds on two streets near my school for a month: the one with trees had eleven "
    "kinds, the bare one had three. Trees need water and care in their first years, and some lift "
    "the pavement. But a budget that counts only the pavement forgets the shade and the birds."
)
ASKED = "Does it argue for something?"
# What a judgment of each begins with, and how it ends for the example.
DIMENSIONS = {
    "claim: It says that": " school should begin at nine",
    "evidence: It counts": " tired pupils for two weeks",
    "objection: It admits that": " parents would leave for work later",
}
JUDGED = "\n".join(f"{begin}{end}." for begin, end in DIMENSIONS.items())
VERDICT = r'\{"grade": ("[AB]", "publish": true|"[CD]", "publish": false)\}'


@sgl.function
def judge(s: sgl.ProgramState, essay: str, image: str | None = None) -> None:
    s += sgl.system("You are a fair and brief judge of essays.")
    s += sgl.user(f"Essay:\n{EXAMPLE}\n\n{ASKED}") + sgl.assistant("yes") + sgl.assistant(JUDGED)
    with s.user():
        if image is not None:
            s += sgl.image(image)
        s += f"Essay:\n{essay}\n\n{ASKED}"
    s += sgl.assistant(sgl.select("argues", ["yes", "no"]))
    branches = s.fork(len(DIMENSIONS))
    for branch, begin in zip(branches, DIMENSIONS, strict=True):
        branch += sgl.assistant(begin + sgl.gen("judgment", max_tokens=32, stop=["\n", ",", "."]))
    branches.join()
    pairs = zip(DIMENSIONS, s["judgment"], strict=True)
    s += sgl.assistant("\n".join(f"{begin}{text}." for begin, text in pairs))
    s += sgl.user("Sum it up in one sentence.")
    s += sgl.assistant("The essay" + sgl.gen("summary", max_tokens=32, stop=["\n", "."]))
    s += sgl.user("Give the verdict as JSON.")
    s += sgl.assistant(sgl.gen("verdict", max_tokens=32, regex=VERDICT))


def main(backend: Any, essay: str = ESSAY, image: str | None = None) -> dict[str, Any]:
    """What was judged, and how many tokens each branch took from the cache."""
    s = judge.run(essay, image, temperature=0, backend=backend)
    found = {name: s[name] for name in ("argues", "judgment", "summary")}
    found["cached_tokens"] = [c.cached_tokens for c in s.trace() if c.name == "judgment"]
    return found | {"verdict": json.loads(s["verdict"])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", help="a file with an image")
    with sgl.command_line(parser) as (backend, options):
        found = main(backend, image=options.image)
        for begin, end in zip(DIMENSIONS, found["judgment"], strict=True):
            print(f"{begin}{end}.")
        print(f"The essay{found['summary']}.", found["verdict"], sep="\n")
