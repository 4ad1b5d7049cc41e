"""A summary of a long text, part by part, as one program on the server: no round trips between."""

from collections.abc import Sequence
from typing import Any

import lang as sgl

EXAMPLES = """Text: The mill was built in 1820 from oak, beside the old bridge of the town.
Before: nothing
In short: The mill was built in 1820.

Text: Its owner ground flour for sixty years, and he never took a day off in all that time.
Before: The mill was built in 1820.
In short: Its owner ground flour for sixty years.

Text: Today it stands empty beside the river, and only swallows and some bats live there.
Before: Its owner ground flour for sixty years.
In short: Today it stands empty.

"""
PARTS = (
    "The lighthouse was built in 1911 on a rock two miles off the coast, of local granite.",
    "Its first keeper lived there for thirty years and wrote down the weather every evening.",
    "Today its lamp is electric, and the keeper's house is a small museum of storms.",
)


@sgl.function
def add(s: Any, part: str, before: Any) -> None:
    s += f"{EXAMPLES}Text: {part}\nBefore:"
    s += " nothing" if before is None else before
    s += "\nIn short:" + sgl.gen("summary", max_tokens=32, stop="\n", temperature=0)


def main(backend: Any, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """The summary of all, and those of the parts; each is written with the one before in sight."""
    with sgl.session(backend, eager=True) as app:
        summaries: list[Any] = []
        for part in parts:
            before = summaries[-1] if summaries else None
            summaries.append(add.submit(part=part, before=before)["summary"])
        whole = app.concat(summaries)
        app.flush()
        return {"summary": whole.get(), "steps": [summary.get() for summary in summaries]}


if __name__ == "__main__":
    with sgl.command_line(__doc__) as (backend, _):
        print(main(backend)["summary"].strip())
