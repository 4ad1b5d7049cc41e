"""`make coverage`: how many lines of each folder the tests reach, from reports of `coverage json`.

    python -m tests.running.coverage_table short.json full.json

Each file is a column; with two, the last one is the difference in points.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Lines(NamedTuple):
    """Of one report, by folder: the lines that can run, and those that did."""

    all: Counter[str]
    run: Counter[str]

    def share(self, folder: str) -> float:
        """In percent."""
        return 100 * self.run[folder] / max(self.all[folder], 1)


def read(report: Path) -> Lines:
    """The lines of each folder of ours, of each package, and in all under ""."""
    lines = Lines(Counter(), Counter())
    for name, file in json.loads(report.read_text())["files"].items():
        parts = Path(name).parts[:-1]
        for folder in {"", *parts[:1], "/".join(parts[:2])}:
            lines.all[folder] += file["summary"]["num_statements"]
            lines.run[folder] += file["summary"]["covered_lines"]
    return lines


def table(reports: list[Lines]) -> list[str]:
    """A row for each folder."""
    rows = []
    for folder in sorted(set().union(*(lines.all for lines in reports))):
        shares = [lines.share(folder) for lines in reports]
        if len(shares) == 2:
            shares.append(shares[1] - shares[0])
        cells = "".join(f"{share:7.1f}" for share in shares)
        rows.append(f"{folder or 'all':<34}{reports[0].all[folder]:>7}{cells}")
    return rows


if __name__ == "__main__":
    print("\n".join(table([read(Path(name)) for name in sys.argv[1:]])))
