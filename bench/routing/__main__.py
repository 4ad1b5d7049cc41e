"""`python -m bench.routing`: how well the router places requests, on a clock of its own, so the
figures are the same on every machine.

Real scheduler cores serve the workloads of `bench.serving`, questions to 24 prefixes, and questions
to 8 prefixes some of which are popular, with the memory of one server divided among them. Each
policy is compared with one tree that has all memory, and with the best of the other policies;
`--delay` lets the router hear of trees and loads late. The exit status is 1 if the default policy
misses a bar. `--slower` has the last replica take so many times as long, which no bar knows.

`--mixed` has chats and map-reduces on two replicas instead, placed by the router and by hand, and
`--cost` measures the router itself, on this machine.
"""

import argparse
import sys
from collections.abc import Sequence

from bench.roofline import TablePrinter, markdown
from bench.routing.cost import costs
from bench.routing.mixed import BY_HAND, HINTED, MIXED_BAR, MIXES
from bench.routing.runs import Row, rows
from bench.routing.shapes import SHAPES


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Raises SystemExit on options that do not parse."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", choices=[*SHAPES], default=[*SHAPES])
    parser.add_argument("--replicas", nargs="+", type=int, default=[4])
    parser.add_argument("--delay", nargs="+", type=float, default=[0.0], help="seconds")
    parser.add_argument("--pool", type=int, default=131_072, help="tokens of all replicas")
    parser.add_argument("--scale", type=float, default=4.0, help="of the number of requests")
    parser.add_argument("--seed", type=int, default=0, help="of the texts")
    parser.add_argument("--slower", type=float, default=1.0, help="the last replica, times")
    parser.add_argument("--mixed", action="store_true", help="chats and map-reduces instead")
    parser.add_argument("--cost", action="store_true", help="measure the router itself instead")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; 0 if all bars are met."""
    args = parse_args(argv)
    if args.cost:
        return _costs()
    if args.mixed:
        return _mixed(args.seed)
    is_good = True
    head = ("workload", "replicas", "delay, s", "policy", "cached, % of one tree", "busiest")
    table = TablePrinter("", (*head, "s", "of the best other", ""), first_width=10)
    options = args.pool, args.scale, args.seed, args.slower
    for row in rows(args.workloads, args.replicas, args.delay, *options):
        table.add(*_cells(row))
        is_good &= not row.missed
    return int(not is_good)


def _cells(row: Row) -> list[str]:
    return [
        *(row.workload, f"{row.replicas}", f"{row.delay_s:g}", row.policy),
        "-" if row.cached is None else f"{100 * row.cached:.1f}",
        *(f"{row.busiest:.2f}", f"{row.seconds:.1f}", f"{row.length:.2f}"),
        f"MISSED: {', '.join(row.missed)}" if row.missed else "",
    ]


def _mixed(seed: int) -> int:
    head = ("chats", "map-reduces", "placed by", "a turn, s", "a map-reduce, s", "by hand", "")
    table = TablePrinter("", head, first_width=10)
    is_good = True
    for mix in MIXES:
        found = mix.times(seed)
        hand = found[BY_HAND]
        for name, times in found.items():
            ratios = times.over(hand)
            missed = name == HINTED and max(ratios) > MIXED_BAR
            is_good &= not missed
            table.add(
                *(f"{mix.chats}", f"{mix.map_reduces}", name),
                *(f"{times.turn_s:.2f}", f"{times.map_reduce_s:.2f}"),
                " / ".join(f"{ratio:.2f}" for ratio in ratios),
                "MISSED" if missed else "",
            )
    return int(not is_good)


def _costs() -> int:
    found = costs()
    lines = [[cost.what, f"{cost.us:.3g}", f"{cost.bar_us:g}"] for cost in found]
    print(markdown(("what", "µs", "bar"), lines))
    return int(not all(cost.is_good for cost in found))


if __name__ == "__main__":
    sys.exit(main())
