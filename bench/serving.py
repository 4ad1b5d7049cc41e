"""`python -m bench.serving`: measures any OpenAI-compatible server on the serving workloads.

The server's prefix cache is emptied before each workload where the server can do that; the
report tells whether it did, because a second run with the same seed would otherwise find its
prompts cached.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.load import LoadGenerator
from bench.report import Figures, figures_of, machine, now, table
from bench.text import TextSource, words_of
from bench.workloads import WORKLOADS


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    parser.add_argument("--workload", required=True, choices=[*WORKLOADS, "all"])
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--model", help="model name to send (default: the server's first)")
    parser.add_argument("--api-key")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the request count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="directory of *.jsonl files to take words from")
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="do not send ignore_eos, for servers that refuse it",
    )
    return parser.parse_args(argv)


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the chosen workloads; the report as plain data."""
    words = words_of(args.data) if args.data else None
    names = list(WORKLOADS) if args.workload == "all" else [args.workload]
    figures: dict[str, Figures] = {}
    flushed: dict[str, bool] = {}
    async with LoadGenerator(
        args.url, args.model, args.api_key, ignore_eos=args.ignore_eos
    ) as load:
        await load.fill_model()
        ratio = await load.tokens_per_word(TextSource(args.seed - 1, words=words))
        for name in names:
            # A workload's text does not depend on which others run with it.
            source = TextSource(args.seed, ratio, words)
            flushed[name] = await load.flush_cache()
            run = await load.run(WORKLOADS[name](source, args.scale))
            figures[name] = figures_of(run)
            for error in sorted({r.error for r in run.records if r.error}):
                print(f"{name}: {error}", file=sys.stderr)
        server = await load.server_info()
    return {
        "date": now(),
        "url": args.url,
        "scale": args.scale,
        "seed": args.seed,
        "ignore_eos": args.ignore_eos,
        "tokens_per_word": ratio,
        "cache_flushed": flushed,
        "figures": figures,
        "machine": machine(),
        "server": server,
    }


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 when a request failed."""
    args = parse_args(argv)
    report = asyncio.run(measure(args))
    print(table(report["figures"]))
    unflushed = [name for name, done in report["cache_flushed"].items() if not done]
    if unflushed:
        print(f"prefix cache not emptied before: {', '.join(unflushed)}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 1 if any(f.errors for f in report["figures"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
