"""Two tips, expanded in parallel by forks of the same state, then summed up."""

from typing import Any

import lang as sgl

TOPIC = "staying healthy"
TIPS = ("eat well", "exercise regularly")


@sgl.function
def tips(s: sgl.ProgramState, topic: str) -> None:
    s += f"Here are two tips for {topic}: {' and '.join(TIPS)}.\n\n"
    forks = s.fork(len(TIPS))
    for fork, tip in zip(forks, TIPS, strict=True):
        fork += f"The tip to {tip} is good because" + sgl.gen(
            "detail", max_tokens=48, stop=["\n", "."]
        )
    for fork, tip in zip(forks, TIPS, strict=True):
        s += f"The tip to {tip} is good because{fork['detail']}.\n"
    s += "In summary," + sgl.gen("summary", max_tokens=32, stop=["\n", "."])


def main(backend: Any, topic: str = TOPIC) -> dict[str, Any]:
    """The whole text, the summary, and how many tokens each fork took from the cache."""
    s = tips.run(topic, temperature=0, backend=backend)
    cached = [call.cached_tokens for call in s.trace() if call.name == "detail"]
    return {"text": s.text(), "summary": s["summary"], "cached_tokens": cached}


if __name__ == "__main__":
    with sgl.command_line(__doc__) as (backend, _):
        found = main(backend)
        print(found["text"] + ".", f"[{found['cached_tokens']} tokens cached]", sep="\n")
