"""What `bench.speculation` knows of other servers: their settings, counters and table.

Sources of the settings: `llama-server --help` and docs/speculative.md of llama.cpp's tree; vLLM's
documentation, "N-Gram Speculation", and its `SpeculativeConfig`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from bench.compare import Launched
from bench.peers.catalogue import peers
from bench.roofline import markdown
from srt.benchmark.workloads import Node

OFF = "off"  # ours without guesses
SLOT_TOKENS = 2048  # longest prompt and answer of the copying workloads, in 256-token steps


def _vllm(tokens: int, shortest: int, longest: int) -> list[str]:
    config = {
        "method": "ngram",
        "num_speculative_tokens": tokens,
        "prompt_lookup_min": shortest,
        "prompt_lookup_max": longest,
    }
    return ["--speculative-config", json.dumps(config)]


def _llamacpp(kind: str, key: int, draft: int, hits: int = 1) -> list[str]:
    sizes = {"size-n": key, "size-m": draft, "min-hits": hits}
    options = [word for name, n in sizes.items() for word in (f"--spec-ngram-{kind}-{name}", n)]
    return ["--spec-type", f"ngram-{kind}", *map(str, options)]


# The options of a peer by what `--peers` calls it: alone as it comes, behind a slash a setting.
SETTINGS: dict[str, list[str]] = {
    "llamacpp": [],
    "llamacpp/default": ["--spec-default"],  # ngram-mod, keys of 24 tokens and drafts of 48 to 64
    "llamacpp/simple": _llamacpp("simple", 12, 48),  # its defaults
    "llamacpp/simple-4": _llamacpp("simple", 4, 8),  # as many tokens as ours
    "llamacpp/k4v": _llamacpp("map-k4v", 8, 8, 2),  # the example of its documentation
    "vllm": [],
    "vllm/ngram": _vllm(5, 4, 4),  # the example of its documentation
    "vllm/ngram-8": _vllm(8, 2, 8),  # as many tokens, after matches as short, as ours
}


def launch_of(name: str, model: Path, logs: Path, args: argparse.Namespace) -> Launched:
    """A peer at one of SETTINGS."""
    peer = peers(args.home.absolute())[name.partition("/")[0]]
    found = Launched(peer, model, logs / f"{name.replace('/', '-')}.log", "")
    found.name = name
    found.extra = list(SETTINGS[name])
    if peer.name == "llamacpp":  # the catalogue's 32 long slots for each server take too much
        slots = max(args.concurrency)
        found.extra += ["--metrics", "--parallel", str(slots), "-c", str(slots * SLOT_TOKENS)]
    return found


def node_for(server: str, node: Node) -> Node:
    """The request with its JSON schema under the name and in the form that the server takes."""
    if "json_schema" not in node.fields:
        return node
    fields: dict[str, Any] = {**node.fields}
    match server.partition("/")[0]:
        case "llamacpp":
            fields["json_schema"] = json.loads(fields["json_schema"])
        case "vllm":
            fields["structured_outputs"] = {"json": json.loads(fields.pop("json_schema"))}
    return msgspec.structs.replace(node, fields=fields)


class Speed(Struct):
    """Output tokens per second of a server over all groups of requests and in each, and what a
    row that verified gave on average, where the server counts it."""

    server: str
    tok_s: float
    groups: list[float]
    accept_length: float | None


def peer_table(speeds: Sequence[Speed], ours: str) -> str:
    """Each server over itself without n-grams, and `ours` over it: of all groups, in brackets from
    least to most of the single ones. Ratios are of tokens per second, as other servers' texts,
    and so their lengths, are not ours."""
    by_name = {speed.server: speed for speed in speeds}
    rows = []
    for speed in speeds:
        plain = by_name.get(speed.server.partition("/")[0] if speed.server in SETTINGS else OFF)
        length = "-" if speed.accept_length is None else f"{speed.accept_length:.2f}"
        row = [speed.server, f"{speed.tok_s:.1f}", length, _over(speed, plain)]
        rows.append([*row, _over(by_name.get(ours), speed)])
    head = ["server", "out tok/s", "tokens per verification", "over itself without", f"{ours} / it"]
    return markdown(head, rows)


def _over(one: Speed | None, other: Speed | None) -> str:
    if one is None or other is None or one is other or not all(other.groups):
        return "-"
    pairs = [a / b for a, b in zip(one.groups, other.groups, strict=True)]
    return f"{one.tok_s / other.tok_s:.2f} ({min(pairs):.2f} to {max(pairs):.2f})"
