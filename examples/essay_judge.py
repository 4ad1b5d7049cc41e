"""Judge an essay: branch, solve, merge.

One branch per dimension judges the same essay, whose tokens are computed once. The judgments are
merged into a summary and a grade, and the verdict is JSON because a regex says so. With `--image`
the essay is about that image, for models that can see.
"""

import argparse
import json
from typing import Any

import lang as sgl

ESSAY = """City trees are worth more than they cost. A street with old trees is several degrees
cooler on a summer afternoon, its shops see more visitors, and its drains flood less often. I
counted birds on two streets near my school for a month: the one with trees had eleven kinds, the
bare one had three. Trees need water and care in their first years, and some lift the pavement. But
a budget that counts only the pavement forgets the shade, the rain and the birds."""
DIMENSIONS = ("clarity", "originality", "evidence")
VERDICT = r'\{"summary": "[A-Za-z ,.]{10,80}", "grade": "[ABCD][+-]?", "publish": (true|false)\}'


@sgl.function
def judge(s: sgl.ProgramState, essay: str, image: str | None = None) -> None:
    s += sgl.system("You are a fair and brief judge of essays.")
    with s.user():
        if image is not None:
            s += sgl.image(image)
        s += f"Essay:\n{essay}\n\nDoes this text argue for something?"
    s += sgl.assistant(sgl.select("argues", ["yes", "no"]))
    branches = s.fork(len(DIMENSIONS))
    for branch, dimension in zip(branches, DIMENSIONS, strict=True):
        branch += sgl.user(f"Judge the {dimension} of the essay in one sentence.")
        branch += sgl.assistant(sgl.gen("judgment", max_tokens=32, stop="\n"))
    branches.join()
    pairs = zip(DIMENSIONS, s["judgment"], strict=True)
    judgments = "\n".join(f"{dimension}: {text}" for dimension, text in pairs)
    s += sgl.user(f"Judgments:\n{judgments}\n\nSum them up in one sentence.")
    s += sgl.assistant(sgl.gen("summary", max_tokens=32, stop="\n"))
    s += sgl.user("Give the verdict as JSON.")
    s += sgl.assistant(sgl.gen("verdict", max_tokens=96, regex=VERDICT))


def main(backend: Any, essay: str = ESSAY, image: str | None = None) -> dict[str, Any]:
    """What was judged, and how many tokens each branch took from the cache."""
    s = judge.run(essay, image, temperature=0, backend=backend)
    found = {name: s[name] for name in ("argues", "judgment", "summary")}
    found["cached_tokens"] = [c.cached_tokens for c in s.trace() if c.name == "judgment"]
    return found | {"verdict": json.loads(s["verdict"])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", default="smollm2", help="of its own server, without --url")
    parser.add_argument("--image", help="a file with an image")
    args = parser.parse_args()
    with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime(args.model) as backend:
        print(json.dumps(main(backend, image=args.image), indent=2))
