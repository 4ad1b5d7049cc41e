"""The command line of the server: its options, grouped as `--help` shows them."""

import argparse
from collections.abc import Sequence
from typing import Any

from srt.args import ServerArgs
from srt.wire.errors import ConfigError

_LATER = {
    "--tp": "tensor parallelism",
    "--ring-tcp": "a ring over TCP",
}


def parse_args(argv: Sequence[str]) -> ServerArgs:
    """Parse a command line into checked ServerArgs. Raises ConfigError, or SystemExit on --help."""
    for name, what in _LATER.items():
        if any(arg == name or arg.startswith(name + "=") for arg in argv):
            raise ConfigError(f"{name}: {what} is not supported yet")
    parsed = vars(_parser().parse_args(argv))
    parsed["served_model_name"] = ",".join(parsed["served_model_name"])
    args = ServerArgs(**parsed)
    args.check()
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m srt.launch",
        description="Serve a language model over HTTP and ZeroMQ.",
    )
    _add_model(parser.add_argument_group("model"))
    _add_server(parser.add_argument_group("server"))
    _add_compute(parser.add_argument_group("compute"))
    _add_scheduling(parser.add_argument_group("scheduling and memory"))
    _add_media(parser.add_argument_group("images and video"))
    _add_grammars(parser.add_argument_group("constrained output"))
    _add_operation(parser.add_argument_group("operation"))
    return parser


def _option(group: Any, name: str, text: str, **kwargs: Any) -> None:
    field = name.removeprefix("--").replace("-", "_")
    default = getattr(ServerArgs(), field)
    if default is False:
        group.add_argument(name, action="store_true", help=text)
    else:
        shown = "" if default == "" else " (default: %(default)s)"
        group.add_argument(name, type=type(default), default=default, help=text + shown, **kwargs)


def _add_model(group: Any) -> None:
    _option(group, "--model", "'smollm2' (embedded), a .gguf file or a model directory")
    text = "names that clients use, '*' is any; the first is the server's (default: the model's)"
    _option(group, "--served-model-name", text, nargs="+", metavar="NAME")


def _add_server(group: Any) -> None:
    _option(group, "--host", "address to listen on")
    _option(group, "--port", "HTTP port; 0 picks a free one")
    _option(group, "--no-http", "serve the ZeroMQ ring only")
    _option(group, "--no-ui", "serve no page at /")
    _option(group, "--api-key", "bearer tokens for HTTP, separated by commas")
    _option(group, "--api-key-file", "file of further bearer tokens, one per line")
    _option(group, "--response-store-mib", "MiB to keep answers of /v1/responses in; 0: keep none")
    _option(group, "--admin-api-key", "bearer tokens of admins, who may also flush and abort all")
    _option(group, "--admin-api-key-file", "file of further bearer tokens of admins, one per line")
    text = "prompts under several API keys share KV: each may find out what others have sent"
    _option(group, "--share-cache-between-keys", text)
    _option(group, "--cors-allow-origins", "web origins that may call, separated by commas, or *")
    _option(group, "--max-connections", "HTTP connections; beyond: the longest idle is closed")
    _option(group, "--stream-interval", "tokens between two events of a stream")
    parsers = ["auto", "think", "none"]
    _option(
        group, "--reasoning-parser", "reasoning in chats; auto: by the template", choices=parsers
    )
    text = "control tokens that users write in chats are tokens: any user can make turns"
    _option(group, "--allow-special-tokens-in-content", text)
    _option(group, "--ring-dir", "private directory for the ring's sockets (default: a new one)")


def _add_compute(group: Any) -> None:
    _option(group, "--device", "torch device, such as cpu or cuda")
    choices = ["auto", "float32", "bfloat16", "float16"]
    _option(group, "--executor", "what runs the model", choices=["auto", "native", "torch"])
    text = "srt, or on torch transformers; auto: transformers for models that srt does not know"
    _option(group, "--model-impl", text, choices=["auto", "srt", "transformers"])
    _option(group, "--dtype", "torch: weights and KV; auto: float32 on a CPU", choices=choices)
    choices = ["auto", "float16", "float32", "fp8_e4m3"]
    text = "KV cache; native: float16 (auto) or float32; torch: as --dtype (auto) or fp8_e4m3"
    _option(group, "--kv-cache-dtype", text, choices=choices)
    choices = ["none", "q8", "q4"]
    text = "native: how to quantise weights that the file does not"
    _option(group, "--quantization", text, choices=choices)
    _option(group, "--exact", "native: float32 weights and KV cache, for parity with a reference")
    text = "native: bits of activations of quantised weights; auto: 16 where that costs no time"
    _option(group, "--activations", text, choices=["auto", "8", "16"])
    choices = ["auto", "flashinfer", "triton", "reference"]
    text = "torch: attention; auto: on CUDA triton, else flashinfer, and on a CPU reference"
    _option(group, "--attention-backend", text, choices=choices)
    _option(group, "--disable-cuda-graph", "CUDA: launch each kernel of a decode by itself")
    text = "CUDA: attention that does not depend on the batch: fixed splits, no cascade; slower"
    _option(group, "--deterministic", text)
    _option(group, "--threads", "compute threads of each replica; 0: its share of all cores")
    _option(group, "--dp", "replicas: schedulers with a copy of the model and a KV pool each")


def _add_media(group: Any) -> None:
    _option(group, "--limit-media", "pictures and videos of one request; 0: none")
    text = "hosts, separated by commas, that pictures may be fetched from (default: none)"
    _option(group, "--media-domain", text)
    _option(group, "--media-queue-mb", "MB of files and pixels of requests in flight before 429")
    _option(group, "--media-cache-mb", "MB of embeddings of pictures that are kept")


def _add_scheduling(group: Any) -> None:
    policies = ["lpm", "dfs-weight", "fcfs", "random"]
    _option(group, "--schedule-policy", "order of admission", choices=policies)
    policies = ["cache-aware", "least-loaded", "round-robin", "random"]
    _option(group, "--router-policy", "which replica gets a request", choices=policies)
    _option(group, "--schedule-max-wait", "seconds by which a later request may overtake")
    _option(group, "--disable-radix-cache", "reuse nothing between requests")
    _option(group, "--disable-overlap-schedule", "plan each step after the previous one (lag 0)")
    text = "size of the KV pool, in tokens; 0: 32768, on CUDA what memory allows"
    _option(group, "--max-total-tokens", text)
    text = "CUDA: part of the free memory for weights and KV pool"
    _option(group, "--mem-fraction-static", text)
    _option(group, "--max-running-requests", "requests in the batch at once")
    _option(group, "--max-queued-requests", "requests in flight before 429")
    _option(group, "--max-queued-tokens", "prompt tokens in flight before 429")
    _option(group, "--max-queue-wait", "expected wait of a new request in seconds; beyond: 429")
    _option(group, "--chunked-prefill-size", "token budget of one step")
    _option(group, "--step-target-ms", "of a step with prefills; 0: 3.6 times decodes alone")
    _option(group, "--random-seed", "seed of unseeded requests; -1: a fresh one")
    text = "guess tokens and verify several at once: from all sources if that pays, or from one"
    _option(group, "--speculative", text, choices=["auto", "off", "own", "tree"])
    _option(group, "--speculative-max-tokens", "tokens to guess for a request in a step, at most")


def _add_grammars(group: Any) -> None:
    backends = ["fsm", "llguidance", "xgrammar"]
    _option(group, "--grammar-backend", "fsm: if regular, else llguidance", choices=backends)
    _option(group, "--grammar-compile-timeout", "CPU seconds that one compilation may take")
    _option(group, "--grammar-compile-memory", "MiB that one compilation may take")
    _option(group, "--disable-jump-forward", "sample forced text token by token")
    text = "end all constrained outputs within their limit, not only JSON and required calls"
    _option(group, "--close-constrained", text)
    _option(
        group, "--grammar-cache-dir", "compiled grammars; auto: ~/.cache/srt/grammars; none: off"
    )


def _add_operation(group: Any) -> None:
    _option(group, "--drain-timeout", "seconds that SIGTERM leaves to requests in flight")
    _option(
        group,
        "--resume-timeout",
        "how long requests wait in seconds for another scheduler when theirs has died",
    )
    _option(
        group,
        "--queue-while-restarting",
        "new requests wait for that scheduler too, instead of getting a 503",
    )
    _option(
        group,
        "--step-timeout",
        "seconds that a step may take before its process is replaced; 0: any",
    )
    levels = ["debug", "info", "warning", "error"]
    _option(group, "--log-level", "how much to log", choices=levels)
    _option(group, "--check-invariants", "check the scheduler's invariants after every step (slow)")
    _option(group, "--record-trace", "file to record the scheduler's inputs to, for replay")
    _add_kv_events(group)


def _add_kv_events(group: Any) -> None:
    text = "address to publish cached blocks at, as vLLM does: tcp://HOST:PORT or ipc://PATH"
    _option(group, "--kv-events", text)
    _option(group, "--kv-events-replay", "address where subscribers ask for what they have missed")
    _option(group, "--kv-events-topic", "first frame of each published message")
    text = "these addresses may be of other machines: whoever reads there sees prompts' token ids"
    _option(group, "--kv-events-public", text)
