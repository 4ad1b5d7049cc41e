"""Draws a run of `bench.overload` as SVG: answers in time, and latency, by the offered load."""

from collections.abc import Callable, Sequence
from html import escape
from math import log10
from typing import Any, NamedTuple

WIDTH, HEIGHT, LEFT, TOP, PLOT_W, PLOT_H = 860, 330, 60, 40, 330, 230
GAP = 90
_INK, _GRID, _OURS, _OTHER = "#222", "#ddd", "#1565c0", "#c62828"


class Series(NamedTuple):
    """Points (x, y) in the data's units; `dash` as SVG writes it, "" for none."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dash: str = ""


class _Panel:
    """One diagram with a logarithmic x axis. y goes from 0 to `top`."""

    def __init__(self, at: int, title: str, ticks: Sequence[float], top: float) -> None:
        self._at, self._title, self._ticks, self._top = at, title, ticks, top

    def _x(self, value: float) -> float:
        low, high = log10(self._ticks[0]), log10(self._ticks[-1])
        return self._at + PLOT_W * (log10(value) - low) / ((high - low) or 1.0)

    def _y(self, value: float) -> float:
        return TOP + PLOT_H * (1 - min(value, self._top) / self._top)

    def draw(self, series: Sequence[Series], bound: float | None = None) -> list[str]:
        parts = [_text(self._at, TOP - 16, self._title, weight="bold")]
        for tick in self._ticks:
            x = self._x(tick)
            parts.append(_line(x, TOP, x, TOP + PLOT_H, _GRID))
            parts.append(_text(x, TOP + PLOT_H + 16, f"{tick:g}×", anchor="middle"))
        for step in range(6):
            value = self._top * step / 5
            parts.append(_line(self._at, self._y(value), self._at + PLOT_W, self._y(value), _GRID))
            parts.append(_text(self._at - 6, self._y(value) + 4, f"{value:.3g}", anchor="end"))
        if bound is not None:
            y = self._y(bound)
            parts.append(_line(self._at, y, self._at + PLOT_W, y, _INK, "2 3"))
            parts.append(_text(self._at + 4, y - 4, f"bound {bound:g} s"))
        for number, one in enumerate(series):
            points = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in one.points)
            style = f'fill="none" stroke="{one.colour}" stroke-width="2"'
            dash = f' stroke-dasharray="{one.dash}"' if one.dash else ""
            parts.append(f'<polyline points="{points}" {style}{dash}/>')
            y = TOP + PLOT_H + 34 + 14 * (number // 2)
            x = self._at + 170 * (number % 2)
            parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}" {style}{dash}/>')
            parts.append(_text(x + 28, y + 4, one.name))
        return parts


def draw(report: Any, other: Any = None) -> str:
    """The SVG of a `bench.overload.Report`; `other`, if given, was measured without the bound."""
    ticks = [level.multiple for level in report.levels]
    runs = [(report, "bound", _OURS)]
    if other is not None:
        runs.append((other, "no bound", _OTHER))
    rates = [
        Series(name, _points(run, lambda level: level.in_time), colour)
        for run, name, colour in runs
    ]
    waits = [
        Series(f"{name}, {word}", _points(run, get), colour, dash)
        for run, name, colour in runs
        for word, get, dash in (
            ("p99", lambda level: level.ttft_p99_s, ""),
            ("p50", lambda level: level.ttft_p50_s, "6 4"),
        )
    ]
    left = _Panel(LEFT, "answers in time, per second", ticks, 1.2 * _highest(rates))
    right = _Panel(
        LEFT + PLOT_W + GAP, "time to first token, s", ticks, 1.1 * max(_highest(waits), 1.0)
    )
    parts = [*left.draw(rates), *right.draw(waits, report.bound_s)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = f'font-family="sans-serif" font-size="12" fill="{_INK}"'
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([f"{head} {style}>", paper, *parts, "</svg>", ""])


def _points(run: Any, get: Callable[[Any], float | None]) -> list[tuple[float, float]]:
    pairs = [(level.multiple, get(level)) for level in run.levels]
    return [(multiple, value) for multiple, value in pairs if value is not None]


def _highest(series: Sequence[Series]) -> float:
    return max((y for one in series for _, y in one.points), default=1.0) or 1.0


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dash: str = "") -> str:
    more = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}"{more}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
