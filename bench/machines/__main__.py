"""`python -m bench.machines`: what a replica on another machine costs, without another machine.

A head has two local replicas, one of an agent on this machine, and one of an agent behind a proxy
that delays what passes by `--delay-ms` each way; links have keys, and each replica one thread. In
each round all replicas serve the same new prompts, one after the other in random order. "time" is
a round's time over that of the first local replica; "local, again" (A/A) is the second one.

`--hits` compares hit rates instead, on the workloads of `bench.serving`: those of two local
replicas, and of a local one and one of an agent, in turns.
"""

import argparse
import sys
from collections.abc import Sequence

from bench.machines.cost import print_costs
from bench.machines.hits import print_hits
from srt.benchmark.workloads import WORKLOADS
from srt.machine import machine


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Raises SystemExit on options that do not parse."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.machines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16], help="requests at once")
    parser.add_argument("--rounds", type=int, default=12, help="beside one that warms up")
    parser.add_argument("--outputs", type=int, default=64, help="tokens of each request")
    parser.add_argument("--delay-ms", type=float, default=25.0, help="of the proxy, each way")
    parser.add_argument("--hits", action="store_true", help="compare hit rates instead")
    parser.add_argument("--workloads", nargs="+", choices=[*WORKLOADS], default=[*WORKLOADS])
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    parser.add_argument("--turns", type=int, default=2, help="of each pair of replicas")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; 1 if a request failed."""
    args = parse_args(argv)
    print(machine(), flush=True)
    return print_hits(args) if args.hits else print_costs(args)


if __name__ == "__main__":
    sys.exit(main())
