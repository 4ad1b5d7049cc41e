"""`srt agent`: run replicas of a server that is on another machine."""

import argparse
import sys
from collections.abc import Sequence

import uvloop

from srt.cluster.agent import Agent, AgentOptions
from srt.cluster.schedulers import GivenUp
from srt.ring.log import set_up_logging
from srt.wire.errors import ConfigError

# The fields of ServerArgs that a node has itself, and whether 0 or "" stands for the head's.
_OWN = ("model", "tokenizer", "device", "threads", "max_total_tokens", "ring_dir")


def make_parser() -> argparse.ArgumentParser:
    """The command line of the agent."""
    parser = argparse.ArgumentParser(
        prog="srt agent",
        description="Run replicas of a server that is on another machine, its head. The agent "
        "connects to the head, which needs --remote-replicas, and gets its options from there.",
    )
    parser.add_argument("--join", required=True, metavar="tcp://HOST:PORT", help="the head")
    parser.add_argument("--keys", metavar="DIR", help="this machine's keys (`srt keys DIR`)")
    parser.add_argument(
        "--insecure", action="store_true", help="without keys; to a head on this machine only"
    )
    parser.add_argument("--replicas", type=int, default=1, help="how many to run (default: 1)")
    parser.add_argument("--model", help="the same model as the head's, where it is here")
    parser.add_argument("--tokenizer", metavar="PATH", help="the same for the tokenizer")
    parser.add_argument("--device", help="torch device, such as cpu or cuda (default: cpu)")
    parser.add_argument(
        "--threads", type=int, help="compute threads of each replica; 0: its share of all cores"
    )
    parser.add_argument(
        "--max-total-tokens",
        type=int,
        help="size of each KV pool, in tokens; 0: what memory allows (default: the head's choice)",
    )
    parser.add_argument("--ring-dir", metavar="PATH", help="where its sockets are")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning"))
    return parser


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit status."""
    parser = make_parser()
    words = parser.parse_args(argv)
    set_up_logging("agent", words.log_level)
    try:
        if words.keys is None and not words.insecure:
            raise ConfigError("--keys DIR is missing: `srt keys DIR` makes keys")
        if words.keys is not None and words.insecure:
            raise ConfigError("--insecure does without --keys: leave one of them out")
        if words.replicas < 1:
            raise ConfigError(f"--replicas must be at least 1, not {words.replicas}")
        own = {name: getattr(words, name) for name in _OWN if getattr(words, name) is not None}
        agent = Agent(AgentOptions(words.join, words.keys, words.replicas, own))
        return uvloop.run(agent.run())
    except (ConfigError, GivenUp) as error:
        print(f"srt: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
