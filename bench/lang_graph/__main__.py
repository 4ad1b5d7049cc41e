"""`python -m bench.lang_graph`: compiled programs against interpreted ones.

"cost": CPU time of this process for a node of a graph, with a back end that answers at once.
"calls": calls of the back end that the examples make, at temperature 0. "sharing": 15 templates of
prompts with `sgl.unordered`, a batch of 24 rows each on a server with an empty cache, eight rows at
once: characters that several prompts have in common, as far as the arguments tell, and prompt
tokens that were cached, as written and as ordered.
"""

import argparse
from collections.abc import Sequence

import lang as sgl
from bench.lang_graph.examples import call_rows
from bench.lang_graph.instant import RUNS, cost_rows
from bench.lang_graph.sharing import sharing_rows
from bench.roofline import markdown
from srt.machine import machine

PARTS = ("cost", "calls", "sharing")
COST = ("program", "nodes", "calls", "us a node", "compiled", "recording", "us a call, compiled")
CALLS = ("example", "calls", "compiled", "one by one", "recorded")
SHARING = ("template", "tokens", "shareable", "ordered", "hit rate", "hit rate, ordered")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Raises SystemExit on options that do not parse."""
    parser = argparse.ArgumentParser(prog="bench.lang_graph", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--runs", type=int, default=RUNS, help="of which cost is the median")
    parser.add_argument("--url", help="a running server; otherwise one is started for sharing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    args = parse_args(argv)
    print(machine())
    if "cost" in args.parts:
        print(markdown(COST, cost_rows(args.runs)))
    if "calls" in args.parts:
        print(markdown(CALLS, call_rows()))
    if "sharing" in args.parts:
        with sgl.RuntimeEndpoint(args.url) if args.url else sgl.Runtime("smollm2") as backend:
            print(markdown(SHARING, sharing_rows(backend)))


if __name__ == "__main__":
    main()
