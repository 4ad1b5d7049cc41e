"""Server arguments: one frozen struct and its checks. Where their values come from is in `options`.

The launcher parses it, writes it into the ring's directory, and every process reads it there.
"""

import re
import stat
from ipaddress import IPv4Network, IPv6Network, ip_interface
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from srt.callers.key_lines import KeyLine, check_key, key_lines
from srt.callers.names import key_digest, name_of_key
from srt.files.chat_templates import chosen_template
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.kv_addresses import check_cluster_address, check_kv_addresses
from srt.patterns.stops import build_stops
from srt.wire.constraint import GrammarError
from srt.wire.errors import ConfigError, quoted

Network = IPv4Network | IPv6Network

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"  # services of containers may have a _
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?")
_ORIGIN = re.compile(r"\*|null|file://|[a-z][a-z0-9+.-]*://[^/\s,]+")  # files are null, or file://

# The front waits for twice the compile time-out and some seconds, and a client for 30 s.
MAX_COMPILE_TIMEOUT_S = 12.0
MAX_KEY_FILE_BYTES = 1024 * 1024
MAX_REPLICAS = 64
# Of the KV pool, where neither --max-total-tokens nor the device's memory says how large it is.
DEFAULT_POOL_TOKENS = 32768
DEFAULT_MEM_FRACTION = 0.88
MAX_TOPIC_CHARS = 256
MAX_DRAFT_TOKENS = 32
MAX_BATCH, MAX_THREADS = 65536, 4096
MIN_CONTEXT = 16
MAX_NUMBER = 2**40  # of any option; infinity does not reach the parts, as JSON has none
_LEAST = {
    **dict.fromkeys(("max_running_requests", "max_queued_requests", "max_queued_tokens"), 1),
    "min_body_rate": 1,
    **dict.fromkeys(("max_connections", "stream_interval", "media_queue_mb", "media_cache_mb"), 1),
    "chunked_prefill_size": 8,
    "grammar_compile_memory": 16,
}
_NOT_NEGATIVE = (
    *("schedule_max_wait", "fair_wait", "step_target_ms", "response_store_mib"),
    *("drain_timeout", "resume_timeout"),
)
# What may name files and folders of the machine: /server_info tells it to admins alone.
PATHS = frozenset(
    {"model", "tokenizer", "chat_template", "api_key_file", "admin_api_key_file", "ring_dir"}
    | {"grammar_cache_dir", "record_trace", "kv_events", "kv_events_replay", "cluster_keys"}
)

# Fields that the launcher sets, for the parts.
NO_OPTIONS = ("planned_bytes", "fingerprint", "chosen_sizes")

# What the native executor can be asked for; anything else means torch.
_NATIVE = {
    "device": ("cpu",),
    "model_impl": ("auto", "srt"),
    "dtype": ("auto",),
    "kv_cache_dtype": ("auto", "float16", "float32", "int16"),
    "attention_backend": ("auto",),
}


def torch_option(options: object) -> str:
    """The first of `options`, which have names of `ServerArgs`, that only torch has, as it stands
    on a command line; "" if there is none."""
    for name, values in _NATIVE.items():
        if (value := getattr(options, name)) not in values:
            return f"--{name.replace('_', '-')} {value}"
    return ""


class ServerArgs(Struct, frozen=True):
    """Everything that can be chosen about a server. Sizes in tokens or requests, times in s."""

    model: str = DEFAULT_MODEL
    served_model_name: str = ""
    tokenizer: str = ""
    chat_template: str = ""
    max_model_len: int = 0
    host: str = "127.0.0.1"
    port: int = 30000
    no_http: bool = False
    no_ui: bool = False
    api_key: str = ""
    api_key_file: str = ""
    response_store_mib: int = 0
    admin_api_key: str = ""
    admin_api_key_file: str = ""
    share_cache_between_keys: bool = False
    cors_allow_origins: str = ""
    allowed_hosts: str = ""
    trusted_proxies: str = ""
    max_connections: int = 2048
    min_body_rate: int = 4096
    stream_interval: int = 1
    ring_dir: str = ""
    unknown_fields: str = "warn"
    strict_model: bool = False
    reasoning_parser: str = "auto"
    allow_special_tokens_in_content: bool = False
    system_line_last: str = ""
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
    remote_replicas: int = 0
    cluster_bind: str = "tcp://127.0.0.1:0"
    cluster_keys: str = ""
    cluster_insecure: bool = False
    cluster: str = "none"
    replica_resources: str = '{"CPU": 1}'
    router_policy: str = "cache-aware"
    schedule_policy: str = "app"
    schedule_max_wait: float = 30.0
    fair_wait: float = 2.0
    programs_ahead: str = "on"
    limit_media: int = 32
    media_domain: str = ""
    media_queue_mb: int = 1024
    media_cache_mb: int = 512
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    max_total_tokens: int = 0
    planned_bytes: int = 0  # no option: of memory, by which the launcher chose max_total_tokens
    # No options either: the launcher's fingerprint of the model, and which of the sizes that it
    # would fill in somebody has chosen.
    fingerprint: str = ""
    chosen_sizes: tuple[str, ...] = ()
    mem_fraction_static: float = DEFAULT_MEM_FRACTION
    max_running_requests: int = 64
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1048576
    max_queue_wait: float = 30.0
    chunked_prefill_size: int = 512
    step_target_ms: float = 0.0
    random_seed: int = -1
    speculative: str = "auto"
    speculative_max_tokens: int = 8
    grammar_backend: str = "fsm"
    grammar_compile_timeout: float = 10.0
    grammar_compile_memory: int = 1024
    grammar_cache_dir: str = "auto"
    disable_jump_forward: bool = False
    close_constrained: bool = False
    open_objects: bool = False
    sampling_defaults: str = "model"
    drain_timeout: float = 10.0
    resume_timeout: float = 30.0
    queue_while_restarting: bool = False
    step_timeout: float = 300.0
    part_timeout: float = 10.0
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
        return tuple(line.key for line in key_lines_of(self) if not line.is_admin)

    def admin_keys(self) -> tuple[str, ...]:
        """The same of the keys for which every route is open, and every request."""
        return tuple(line.key for line in key_lines_of(self) if line.is_admin)

    def cors_origins(self) -> tuple[str, ...]:
        """The web origins whose pages may call the HTTP routes."""
        return tuple(origin.strip() for origin in self.cors_allow_origins.split(",") if origin)

    def host_names(self) -> tuple[str, ...]:
        """The further names by which a server without keys may be called."""
        return tuple(name.strip() for name in self.allowed_hosts.split(",") if name)

    def proxy_networks(self) -> tuple[Network, ...]:
        """The proxies whose word on the caller of a request is taken. Raises ConfigError."""
        listed = (text.strip() for text in self.trusted_proxies.split(","))
        return tuple(_network(text) for text in listed if text)

    def media_domains(self) -> tuple[str, ...]:
        """The hosts that pictures may be fetched from, in lower case."""
        return tuple(host.strip().lower() for host in self.media_domain.split(",") if host)

    def check(self) -> None:
        """Raise ConfigError naming the first argument that cannot work. Whether there is such a
        model is not looked up."""
        self._check_numbers()
        _require(self.host != "", "host", "must not be empty; 0.0.0.0 listens on all interfaces")
        self._check_device()
        self.api_keys()
        self.admin_keys()
        chosen_template(self.chat_template)
        for origin in self.cors_origins():
            rule = f"{origin!r} is not *, scheme://host[:port], file:// or null"
            _require(_ORIGIN.fullmatch(origin) is not None, "cors_allow_origins", rule)
        for name in self.host_names():
            is_name = name == "*" or _HOST_NAME.fullmatch(name) is not None
            rule = f"{name!r} is not * or the name of a host, without scheme and port"
            rule += "; addresses need no entry"
            _require(is_name, "allowed_hosts", rule)
        self.proxy_networks()
        for host in self.media_domains():
            is_host = _HOST.fullmatch(host) is not None
            _require(is_host, "media_domain", f"{host!r} is not the name of a host")
        self._check_speculative()
        self._check_system_line()
        rule = "is for replicas of this machine: leave it out with --remote-replicas"
        for name in ("kv_events", "record_trace"):
            _require(not (self.remote_replicas and getattr(self, name)), name, rule)
        if self.remote_replicas:
            check_cluster_address(
                self.cluster_bind, self.cluster_keys, insecure=self.cluster_insecure
            )
        check_kv_addresses(
            self.kv_events, self.kv_events_replay, public=self.kv_events_public, replicas=self.dp
        )
        is_cached = not (self.kv_events and self.disable_radix_cache)
        _require(is_cached, "kv_events", "has nothing to publish with --disable-radix-cache")
        topic = self.kv_events_topic
        is_short = len(topic) <= MAX_TOPIC_CHARS and topic.isprintable()
        rule = f"must have at most {MAX_TOPIC_CHARS} characters, all printable"
        _require(is_short, "kv_events_topic", rule)

    def _check_numbers(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)):
                rule = f"must be a number, and at most {MAX_NUMBER}"
                _require(-MAX_NUMBER <= value <= MAX_NUMBER, name, rule)
        for name, least in _LEAST.items():
            _require(getattr(self, name) >= least, name, f"must be at least {least}")
        for name in _NOT_NEGATIVE:
            _require(getattr(self, name) >= 0, name, "must not be negative")
        _require(self.max_queue_wait >= 0, "max_queue_wait", "must be 0 (no limit) or more")
        for name in ("step_timeout", "part_timeout"):
            limit_s = getattr(self, name)  # reports come four times a second
            _require(limit_s == 0 or limit_s >= 1, name, "must be 0 (no limit), or at least 1")
        most = MAX_BATCH
        _require(
            self.max_running_requests <= most, "max_running_requests", f"must be at most {most}"
        )
        length = self.max_model_len
        rule = f"must be 0 (the model's own), or at least {MIN_CONTEXT} tokens"
        _require(length == 0 or length >= MIN_CONTEXT, "max_model_len", rule)
        _require(self.limit_media >= 0, "limit_media", "must be 0 (none) or more")
        _require(0 <= self.port <= 65535, "port", "must be between 0 and 65535")
        least, remote = int(self.remote_replicas == 0), self.remote_replicas
        rule = f"must be between {least} and {MAX_REPLICAS}"
        _require(least <= self.dp <= MAX_REPLICAS, "dp", rule)
        rule = f"must be between 0 and {MAX_REPLICAS}, and so must its sum with --dp"
        _require(0 <= remote <= MAX_REPLICAS - self.dp, "remote_replicas", rule)
        rule = f"must be 0 (all cores), or at most {MAX_THREADS}"
        _require(0 <= self.threads <= MAX_THREADS, "threads", rule)
        most_s = MAX_COMPILE_TIMEOUT_S
        rule = f"must be above 0 and at most {most_s:.0f}"
        is_bounded = 0 < self.grammar_compile_timeout <= most_s
        _require(is_bounded, "grammar_compile_timeout", rule)

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
        is_sized = self.dp <= 1 or self.pool_tokens > 0
        rule = "needs --max-total-tokens on a CUDA device, whose memory the replicas share"
        _require(is_sized, "dp", rule)

    def _check_system_line(self) -> None:
        try:
            build_stops([self.system_line_last] if self.system_line_last else [])
        except GrammarError as error:
            raise ConfigError(f"--system-line-last {error}") from None

    def _check_speculative(self) -> None:
        is_some = 1 <= self.speculative_max_tokens <= MAX_DRAFT_TOKENS
        rule = f"must be between 1 and {MAX_DRAFT_TOKENS}"
        _require(is_some, "speculative_max_tokens", rule)
        has_tree = not (self.speculative == "tree" and self.disable_radix_cache)
        rule = "tree has no tree to guess from with --disable-radix-cache"
        _require(has_tree, "speculative", rule)

    def public(self) -> dict[str, Any]:
        """The arguments without secrets, for /server_info."""
        hidden = ("api_key", "admin_api_key", *NO_OPTIONS)
        return {k: v for k, v in msgspec.structs.asdict(self).items() if k not in hidden}


def places_of(args: ServerArgs) -> int:
    """How many replicas a ring has room for, here and on other machines."""
    return args.dp + args.remote_replicas


def key_lines_of(args: ServerArgs) -> list[KeyLine]:
    """All keys of a server, with what their files say of them. Raises ConfigError as `api_keys`
    does."""
    lines = _keys("api_key", args.api_key, args.api_key_file)
    admins = _keys("admin_api_key", args.admin_api_key, args.admin_api_key_file)
    return lines + [replace(line, is_admin=True) for line in admins]


def key_files_of(args: ServerArgs) -> tuple[str, ...]:
    """The files that its keys are read from."""
    return tuple(path for path in (args.api_key_file, args.admin_api_key_file) if path)


def _require(ok: bool, name: str, rule: str) -> None:
    if not ok:
        raise ConfigError(f"{_option(name)} {rule}")


def _network(text: str) -> Network:
    """One of `trusted_proxies`. IPv4 addresses that are written as IPv6 ones are IPv4 addresses,
    as are those that the network is compared with."""
    try:
        found = ip_interface(text)
    except ValueError:
        rule = "is not an IP address or a network such as 10.0.0.0/8"
        raise ConfigError(f"--trusted-proxies {quoted(text)} {rule}") from None
    network = found.network
    if "%" in text:
        rule = "has a zone, which is not compared: leave it out"
        raise ConfigError(f"--trusted-proxies {quoted(text)} {rule}")
    if found.ip != network.network_address:
        rule = f"has bits beyond its prefix: the network is {network}, the address {found.ip}"
        raise ConfigError(f"--trusted-proxies {quoted(text)} {rule}")
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= 96:
        network = IPv4Network((mapped, network.prefixlen - 96))
    if network.prefixlen == 0:
        rule = "is every address: name those of the proxies"
        raise ConfigError(f"--trusted-proxies {quoted(text)} {rule}")
    return network


def _keys(name: str, listed: str, path: str) -> list[KeyLine]:
    """Those of the option `name`, with commas between them, and of the file `path`."""
    keys = [key for key in listed.split(",") if key]
    _require(bool(keys) or not listed, name, "has no key between its commas")
    for key in keys:
        try:
            check_key(key)
        except ValueError as error:
            raise ConfigError(f"{_option(name)} {error}") from None
    of_file: list[KeyLine] = []
    if path:
        lines = numbered_lines(path, f"{name}_file")
        _require(bool(lines), f"{name}_file", f"{path} has no keys")
        of_file = key_lines(lines, f"{_option(name)}-file: {path}")
    given = {key: KeyLine(key, name_of_key(key_digest(key))) for key in keys}
    return list((given | {line.key: line for line in of_file}).values())


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def numbered_lines(path: str, name: str) -> list[tuple[int, str]]:
    """The lines of a text file that are not blank, without blanks around them, with their numbers
    from 1 on. Raises ConfigError naming the option `name`."""
    try:
        found = Path(path).stat()
        is_short = stat.S_ISREG(found.st_mode) and found.st_size <= MAX_KEY_FILE_BYTES
        _require(is_short, name, f"must be a file of at most {MAX_KEY_FILE_BYTES} bytes")
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{_option(name)}: cannot read {path}: {reason}") from error
    return [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
