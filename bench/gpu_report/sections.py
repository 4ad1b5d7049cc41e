"""What a section of the report gets, and how it hands its figures over.

Each section runs in a process of its own and writes its figures to a file whenever there is a new
one, so that a section that hangs, or whose device is lost, keeps what it has measured.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from bench.gpu_report.timing import Clock


class Sink:
    """Figures by name, in a file that is always whole."""

    def __init__(self, path: Path) -> None:
        self.figures: dict[str, Any] = {}
        self._path = path

    def put(self, name: str, figure: Any) -> None:
        """Keep a figure, and write all of them."""
        self.figures[name] = figure
        write_json(self._path, self.figures)


class Context(NamedTuple):
    """The conditions of a section. `peaks` are the figures of the section `ceilings`, if it has
    run: bytes and floating-point operations per second."""

    device: torch.device
    is_full: bool
    peaks: dict[str, float]
    sink: Sink
    tests: Path

    def clock(self, runs: int = 30, warm: int = 5) -> Clock:
        """One that makes few calls at toy scale."""
        return Clock(
            self.device, runs=runs if self.is_full else 2, warm=warm if self.is_full else 1
        )

    def share(self, rate: float, peak: str) -> float | None:
        """Of a measured ceiling; None if that is not known."""
        return rate / self.peaks[peak] if self.peaks.get(peak) else None


class Section(NamedTuple):
    """`limit_s` is the time after which its process is ended, at full scale."""

    limit_s: float
    run: Callable[[Context], None]


def write_json(path: Path, content: Any) -> None:
    """Replace the file at once: a reader, or one who comes after a crash, sees a whole one."""
    partial = path.with_name(path.name + ".new")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
    os.replace(partial, path)
