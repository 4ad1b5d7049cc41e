"""Where a decoder's run stops: at the first sampled gen that its log does not answer.

That gen is asked several times, and what follows it in its state is left to the runs that go on
with one of the answers.
"""

from collections.abc import Collection

from msgspec import structs

from lang.backends.sampling import Sampling
from lang.errors import LangError
from lang.logs.address import Path
from lang.logs.entries import Entry


class Reached(LangError):
    """The run has come to a gen whose answers a decoder chooses among."""


class Frontier:
    """`entries` are the answers of the gen that was reached, one for each way to go on.

    Only gens of the run's own state are reached, not those of forks or of runs inside it: those
    with one of `names`, by default all, that draw samples, one each.
    """

    def __init__(self, expand: int, names: Collection[str] | None) -> None:
        self.expand = expand
        self._names = names
        self.entries: list[Entry] = []

    def is_at(self, path: Path, name: str, sampling: Sampling) -> bool:
        """Whether this gen is to be asked several times."""
        return (
            sampling.n == 1
            and not sampling.is_greedy
            and all(step.kind == "branch" for step in path)
            and (self._names is None or name in self._names)
        )

    def reach(self, entry: Entry) -> Reached:
        """`entry` has all answers, of which the first of equal ones count. What ends the run."""
        texts: set[str] = set()
        for i, each in enumerate(entry.completions):
            if each.text not in texts:
                texts.add(each.text)
                self.entries.append(structs.replace(entry, completions=(each,), branch=i))
        return Reached("the decoder goes on with other runs")
