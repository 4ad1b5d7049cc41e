"""`python -m bench.hit_rate`: how much of the reachable reuse the scheduler gets, with the server's
default options, on a clock of its own: no server, no model, and the same figures on every machine.

The real scheduler core serves seven families of prompts, as a batch and as they arrive over time,
with a pool of 25 and 50 % of the working set; and attacks on the bound of `--schedule-max-wait`.
Each table names its target; the exit status is 1 if one is missed. `--max-wait 5 15 30 60` compares
these bounds instead. `--server` sends 36 requests to a server whose pool holds 1 of 6 documents.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence

from bench.hit_rate.families import FAMILIES
from bench.hit_rate.runs import (
    BATCH_TARGET,
    CACHE_AWARE,
    ONLINE_TARGET,
    AttackRow,
    BatchRow,
    OnlineRow,
    attack_rows,
    batch_rows,
    cases,
    online_rows,
)
from bench.hit_rate.server import SERVED_TARGET, served_reuse
from bench.hit_rate.simulator import DEFAULTS


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Raises SystemExit on options that do not parse."""
    parser = argparse.ArgumentParser(prog="bench.hit_rate", description=__doc__)
    parser.add_argument("--families", nargs="+", choices=[*FAMILIES], default=[])
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of texts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-wait", nargs="+", type=float, default=[], help="bounds to compare")
    parser.add_argument("--server", action="store_true", help="measure a real server instead")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 0 if all targets are met."""
    args = parse_args(argv)
    if args.server:
        return _server()
    if args.max_wait:
        return _compare_bounds(args)
    all_cases = list(cases(args.families, args.scale, args.seed))
    return max(
        _batch(row for case in all_cases for row in batch_rows(case)),
        _online(row for case in all_cases for row in online_rows(case, args.seed)),
        _attacks(attack_rows(args.scale, args.seed, DEFAULTS.schedule_max_wait)),
    )


def _batch(rows: Iterable[BatchRow]) -> int:
    print(
        f"\nBatch, share of the optimum; target {BATCH_TARGET} for {' and '.join(CACHE_AWARE)}.\n"
    )
    head = ("family", "pool", "policy", "reuse", "Belady", "s", "")
    return _table(
        head,
        (
            (
                *(row.case.family, f"{100 * row.case.pool_share:.0f} %", row.policy),
                *(f"{row.reuse:.3f}", f"{row.belady:.3f}", f"{row.seconds:.0f}", row.is_good),
            )
            for row in rows
        ),
    )


def _online(rows: Iterable[OnlineRow]) -> int:
    print(
        f"\nOnline, share of the optimum; target {ONLINE_TARGET} of the policy without a bound.\n"
    )
    head = ("family", "pool", "load", "policy", "max wait, s", "reuse", "without bound", "Belady")
    return _table(
        (*head, "p99 wait, s", "s", "overtaken by, s", ""),
        (
            (
                *(row.case.family, f"{100 * row.case.pool_share:.0f} %", row.load, row.policy),
                *(f"{row.max_wait_s:g}", f"{row.reuse:.3f}", f"{row.unbounded:.3f}"),
                *(f"{row.belady:.3f}", f"{row.p99_wait_s:.0f}", f"{row.seconds:.0f}"),
                *(f"{row.overtaking_s:.1f}", row.is_good),
            )
            for row in rows
        ),
    )


def _attacks(rows: Iterable[AttackRow]) -> int:
    print("\nAttacks; target: nobody is overtaken by one that came more than max wait later.\n")
    head = ("attack", "policy", "max wait, s", "overtaken by, s", "without bound")
    return _table(
        (*head, "longest cold wait, s", "without bound", ""),
        (
            (
                *(row.attack, row.policy, f"{row.max_wait_s:g}", f"{row.overtaking_s:.1f}"),
                *(f"{row.unbounded_overtaking_s:.1f}", f"{row.cold_wait_s:.0f}"),
                *(f"{row.unbounded_cold_wait_s:.0f}", row.is_good),
            )
            for row in rows
        ),
    )


def _compare_bounds(args: argparse.Namespace) -> int:
    """Print the figures of the default policy with each bound, under the online loads."""
    policies = [DEFAULTS.schedule_policy]
    rows = (
        row
        for case in cases(args.families, args.scale, args.seed)
        for row in online_rows(case, args.seed, policies, args.max_wait)
    )
    _online(rows)
    return 0


def _server() -> int:
    share = served_reuse()
    print(f"reuse {share:.3f} of the reachable; target {SERVED_TARGET}")
    return int(share < SERVED_TARGET)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """Print a Markdown table whose last column is whether the target is met; 1 if one is missed."""
    missed = 0
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for *cells, is_good in rows:
        missed |= not is_good
        print("| " + " | ".join(str(cell) for cell in (*cells, "" if is_good else "MISSED")) + " |")
        sys.stdout.flush()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
