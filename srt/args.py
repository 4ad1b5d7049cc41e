"""Server arguments: one frozen struct, its command line, and its checks.

The launcher parses it, writes it into the ring's directory, and every process reads it there.
"""

import argparse
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.kv_addresses import check_kv_addresses
from srt.wire.errors import ConfigError

_LATER = {
    "--tp": "tensor parallelism",
    "--ring-tcp": "a ring over TCP",
}
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]+")

# The front waits for twice the compile time-out and some seconds, and a client for 30 s.
MAX_COMPILE_TIMEOUT_S = 12.0
MAX_KEY_FILE_BYTES = 1024 * 1024
MAX_REPLICAS = 64
# Of the KV pool, where neither --max-total-tokens nor the device's memory says how large it is.
DEFAULT_POOL_TOKENS = 32768
DEFAULT_MEM_FRACTION = 0.88
MAX_TOPIC_CHARS = 256


class ServerArgs(Struct, frozen=True):
    """Everything that can be chosen about a server. Sizes in tokens or requests, times in s."""

    model: str = DEFAULT_MODEL
    served_model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 30000
    no_http: bool = False
    api_key: str = ""
    api_key_file: str = ""
    response_store_mib: int = 0
    admin_api_key: str = ""
    admin_api_key_file: str = ""
    share_cache_between_keys: bool = False
    cors_allow_origins: str = ""
    max_connections: int = 2048
    stream_interval: int = 1
    ring_dir: str = ""
    reasoning_parser: str = "auto"
    allow_special_tokens_in_content: bool = False
    device: str = "cpu"
    model_impl: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str = "none"
    exact: bool = False
    activations: str = "auto"
    executor: str = "auto"
    attention_backend: str = "auto"
    disable_cuda_graph: bool = False
    deterministic: bool = False
    threads: int = 0
    dp: int = 1
    router_policy: str = "cache-aware"
    schedule_policy: str = "lpm"
    schedule_max_wait: float = 30.0
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    max_total_tokens: int = 0
    mem_fraction_static: float = DEFAULT_MEM_FRACTION
    max_running_requests: int = 64
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1048576
    max_queue_wait: float = 30.0
    chunked_prefill_size: int = 512
    step_target_ms: float = 0.0
    random_seed: int = -1
    grammar_backend: str = "fsm"
    grammar_compile_timeout: float = 10.0
    grammar_compile_memory: int = 1024
    grammar_cache_dir: str = "auto"
    disable_jump_forward: bool = False
    drain_timeout: float = 10.0
    resume_timeout: float = 30.0
    queue_while_restarting: bool = False
    step_timeout: float = 300.0
    log_level: str = "info"
    check_invariants: bool = False
    record_trace: str = ""
    kv_events: str = ""
    kv_events_replay: str = ""
    kv_events_topic: str = "kv-events"
    kv_events_public: bool = False

    @property
    def model_name(self) -> str:
        """The name that the server gives itself."""
        names = [name for name in self.model_names if name != "*"]
        return names[0] if names else resolve_model(self.model).name

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that were chosen for clients to use; `*` is any."""
        names = (name.strip() for name in self.served_model_name.split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def is_cuda(self) -> bool:
        """Whether the model runs on a CUDA device."""
        return self.device.partition(":")[0] == "cuda"

    @property
    def pool_tokens(self) -> int:
        """What the KV pool has at most, in tokens; 0: what the device has memory for. It then has
        room for at least one request of the model's whole context, or the scheduler ends."""
        return self.max_total_tokens or (0 if self.is_cuda else DEFAULT_POOL_TOKENS)

    def api_keys(self) -> tuple[str, ...]:
        """The keys of both options. Each opens the HTTP routes; with none, and no admin's,
        they are open.

        Raises ConfigError for a file that cannot be read and for what no header could carry.
        """
        return _keys("api_key", self.api_key, self.api_key_file)

    def admin_keys(self) -> tuple[str, ...]:
        """The same of the keys for which every route is open, and every request."""
        return _keys("admin_api_key", self.admin_api_key, self.admin_api_key_file)

    def cors_origins(self) -> tuple[str, ...]:
        """The web origins whose pages may call the HTTP routes."""
        return tuple(origin.strip() for origin in self.cors_allow_origins.split(",") if origin)

    def check(self) -> None:
        """Raise ConfigError naming the first argument that cannot work."""
        for name in ("max_running_requests", "max_queued_requests"):
            _require(getattr(self, name) >= 1, name, "must be at least 1")
        for name in ("max_connections", "stream_interval"):
            _require(getattr(self, name) >= 1, name, "must be at least 1")
        self._check_device()
        self.api_keys()
        self.admin_keys()
        for origin in self.cors_origins():
            is_origin = origin == "*" or _ORIGIN.fullmatch(origin) is not None
            _require(
                is_origin, "cors_allow_origins", f"{origin!r} is not * or scheme://host[:port]"
            )
        _require(self.max_queued_tokens >= 1, "max_queued_tokens", "must be at least 1")
        _require(self.chunked_prefill_size >= 8, "chunked_prefill_size", "must be at least 8")
        _require(0 <= self.port <= 65535, "port", "must be between 0 and 65535")
        _require(self.max_queue_wait >= 0, "max_queue_wait", "must be 0 (no limit) or more")
        _require(self.schedule_max_wait >= 0, "schedule_max_wait", "must not be negative")
        _require(self.step_target_ms >= 0, "step_target_ms", "must not be negative")
        _require(self.response_store_mib >= 0, "response_store_mib", "must not be negative")
        _require(self.drain_timeout >= 0, "drain_timeout", "must not be negative")
        _require(self.resume_timeout >= 0, "resume_timeout", "must not be negative")
        _require(self.step_timeout >= 0, "step_timeout", "must be 0 (no limit) or more")
        _require(1 <= self.dp <= MAX_REPLICAS, "dp", f"must be between 1 and {MAX_REPLICAS}")
        _require(self.threads >= 0, "threads", "must be 0 (all cores) or more")
        _require(
            0 < self.grammar_compile_timeout <= MAX_COMPILE_TIMEOUT_S,
            "grammar_compile_timeout",
            f"must be above 0 and at most {MAX_COMPILE_TIMEOUT_S:.0f}",
        )
        _require(self.grammar_compile_memory >= 16, "grammar_compile_memory", "must be at least 16")
        check_kv_addresses(
            self.kv_events, self.kv_events_replay, public=self.kv_events_public, replicas=self.dp
        )
        is_cached = not (self.kv_events and self.disable_radix_cache)
        _require(is_cached, "kv_events", "has nothing to publish with --disable-radix-cache")
        topic = self.kv_events_topic
        is_short = len(topic) <= MAX_TOPIC_CHARS and topic.isprintable()
        rule = f"must have at most {MAX_TOPIC_CHARS} characters, all printable"
        _require(is_short, "kv_events_topic", rule)
        resolve_model(self.model)

    def _check_device(self) -> None:
        _require(self.max_total_tokens >= 0, "max_total_tokens", "must be 0 (auto) or more")
        fraction = self.mem_fraction_static
        _require(0 < fraction < 1, "mem_fraction_static", "must be above 0 and below 1")
        has_effect = self.is_cuda or fraction == DEFAULT_MEM_FRACTION
        rule = f"is for CUDA devices; on {self.device} --max-total-tokens sizes the pool"
        _require(has_effect, "mem_fraction_static", rule)
        for name in ("deterministic", "disable_cuda_graph"):
            has_effect = self.is_cuda or not getattr(self, name)
            _require(has_effect, name, f"is for CUDA devices, not {self.device}")
        is_sized = self.dp == 1 or self.pool_tokens > 0
        rule = "needs --max-total-tokens on a CUDA device, whose memory the replicas share"
        _require(is_sized, "dp", rule)

    def public(self) -> dict[str, Any]:
        """The arguments without secrets, for /server_info."""
        secret = ("api_key", "admin_api_key")
        return {k: v for k, v in msgspec.structs.asdict(self).items() if k not in secret}


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


def _require(ok: bool, name: str, rule: str) -> None:
    if not ok:
        raise ConfigError(f"--{name.replace('_', '-')} {rule}")


def _keys(name: str, listed: str, path: str) -> tuple[str, ...]:
    """Those of the option `name`, with commas between them, and of the file `path`."""
    given = [(key, name) for key in listed.split(",") if key]
    _require(bool(given) or not listed, name, "has no key between its commas")
    if path:
        lines = _lines_of(path, f"{name}_file")
        given += [(line, f"{name}_file") for line in lines]
        _require(bool(lines), f"{name}_file", f"{path} has no keys")
    for key, option in given:
        is_one_word = key.isascii() and key.isprintable() and " " not in key
        _require(is_one_word, option, "keys must be printable ASCII without blanks")
    return tuple(dict.fromkeys(key for key, _ in given))


def _lines_of(path: str, name: str) -> list[str]:
    """The lines of a text file that are not blank, without blanks around them."""
    try:
        found = Path(path).stat()
        is_short = stat.S_ISREG(found.st_mode) and found.st_size <= MAX_KEY_FILE_BYTES
        _require(is_short, name, f"must be a file of at most {MAX_KEY_FILE_BYTES} bytes")
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--{name.replace('_', '-')}: cannot read {path}: {reason}") from error
    return [line.strip() for line in lines if line.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m srt.launch",
        description="Serve a language model over HTTP and ZeroMQ.",
    )
    _add_model(parser.add_argument_group("model"))
    _add_server(parser.add_argument_group("server"))
    _add_compute(parser.add_argument_group("compute"))
    _add_scheduling(parser.add_argument_group("scheduling and memory"))
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
    text = "torch: attention; auto: on CUDA flashinfer, else triton, and on a CPU reference"
    _option(group, "--attention-backend", text, choices=choices)
    _option(group, "--disable-cuda-graph", "CUDA: launch each kernel of a decode by itself")
    text = "CUDA: attention that does not depend on the batch: fixed splits, no cascade; slower"
    _option(group, "--deterministic", text)
    _option(group, "--threads", "compute threads of each replica; 0: its share of all cores")
    _option(group, "--dp", "replicas: schedulers with a copy of the model and a KV pool each")


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


def _add_grammars(group: Any) -> None:
    backends = ["fsm", "llguidance", "xgrammar"]
    _option(group, "--grammar-backend", "fsm: if regular, else llguidance", choices=backends)
    _option(group, "--grammar-compile-timeout", "CPU seconds that one compilation may take")
    _option(group, "--grammar-compile-memory", "MiB that one compilation may take")
    _option(group, "--disable-jump-forward", "sample forced text token by token")
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
