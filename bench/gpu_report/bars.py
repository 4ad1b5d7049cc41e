"""The bars that the CUDA path must pass, read off the report's figures."""

from collections.abc import Mapping
from typing import Any, NamedTuple

BACKENDS = ("flashinfer", "triton")


class Bar(NamedTuple):
    """`path` leads to the figure, which must be at least `least` or at most `most`."""

    name: str
    path: tuple[str, ...]
    least: float | None = None
    most: float | None = None


def _of(backend: str) -> tuple[Bar, ...]:
    section = f"model, {backend}"
    return (
        Bar(f"{backend}: decode 1", (section, "decode 1", "share_of_copy"), least=0.75),
        Bar(f"{backend}: prefill 512", (section, "prefill 512", "share_of_matmul"), least=0.55),
        Bar(f"{backend}: prefill 8192", (section, "prefill 8192", "share_of_matmul"), least=0.55),
        Bar(f"{backend}: exposed at 1", (section, "decode 1", "exposed"), most=0.02),
        Bar(f"{backend}: exposed at 64", (section, "decode 64", "exposed"), most=0.02),
        Bar(f"{backend}: cascade", (section, "cascade", "speedup"), least=2.0),
    )


BARS = (
    *(bar for backend in BACKENDS for bar in _of(backend)),
    Bar("pages of one slot", ("kernels", "page size", "loss"), most=0.05),
)


def judged(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each bar with the figure that was found and whether it passes; `passed` is None where there
    is no figure."""
    found = {}
    for bar in BARS:
        value: Any = figures
        for name in bar.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        passed = None
        if value is not None:
            passed = value >= bar.least if bar.least is not None else value <= bar.most
        bound = f"at least {bar.least}" if bar.least is not None else f"at most {bar.most}"
        found[bar.name] = {"value": value, "bar": bound, "passed": passed}
    return found
