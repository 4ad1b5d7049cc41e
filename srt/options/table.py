"""Every option of the server, in groups by what a person wants to do, and how its text is read."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from srt.args import ServerArgs
from srt.files.chat_templates import NAMES
from srt.wire.errors import quoted

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_DEFAULTS = ServerArgs()
_KINDS = {str: "text", int: "an integer", float: "a number", bool: "true or false"}

Value = str | int | float | bool


class Option(Struct, frozen=True):
    """One option. `name` is that of the flag without its dashes, and of the key in a file."""

    name: str
    text: str
    choices: tuple[str, ...] = ()
    is_list: bool = False  # its text may hold several, with commas between them
    is_secret: bool = False
    is_path: bool = False

    @property
    def flag(self) -> str:
        """As it stands on a command line."""
        return f"--{self.name}"

    @property
    def field(self) -> str:
        """Of `ServerArgs`."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Of the environment."""
        return f"SRT_{self.field.upper()}"

    @property
    def default(self) -> Value:
        """What it is if nothing sets it; its type is the option's."""
        default: Value = getattr(_DEFAULTS, self.field)
        return default

    def of_text(self, text: str) -> Value:
        """The value that a variable's text means. Raises ValueError with what it must be."""
        kind = type(self.default)
        if kind is bool:
            if text.lower() not in (*_YES, *_NO):
                raise ValueError(f"must be true or false, not {self._shown(text)}")
            return text.lower() in _YES
        try:
            return self._chosen(kind(text))
        except ValueError:
            raise ValueError(f"must be {self._kind()}, not {self._shown(text)}") from None

    def of_toml(self, value: Any) -> Value:
        """The value that one of a TOML file means. Raises ValueError with what it must be."""
        kind = type(self.default)
        texts = value if isinstance(value, list) else [value]
        if any("\0" in text for text in texts if isinstance(text, str)):
            raise ValueError("must have no NUL, which no name of a file or host has")
        if self.is_list and isinstance(value, list) and all(type(item) is str for item in value):
            if any("," in item for item in value):
                raise ValueError("must have no commas within a text: they separate several")
            return ",".join(value)
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise ValueError(f"must be {self._kind()}, not {self._shown(value)}")
        return self._chosen(value)

    def _chosen(self, value: Value) -> Value:
        if self.choices and value not in self.choices:
            raise ValueError(f"must be {self._kind()}, not {self._shown(value)}")
        return value

    def _kind(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        return _KINDS[type(self.default)] + (" or a list of texts" if self.is_list else "")

    def _shown(self, value: Any) -> str:
        return "this" if self.is_secret else quoted(value) if type(value) is str else repr(value)


GROUPS: dict[str, tuple[Option, ...]] = {
    "Which model, and how exactly": (
        Option(
            "model",
            "'smollm2' (embedded), a .gguf file, a model directory, or one of the hub: "
            "org/name[@revision], org/name:Q4_K_M, an address",
            is_path=True,
        ),
        Option(
            "served-model-name",
            "names that clients use, '*' is any; the first is the server's (default: the model's)",
            is_list=True,
        ),
        Option(
            "tokenizer",
            "in place of the model's: a directory, or a tokenizer.json, tokenizer.model, .tiktoken "
            "or .gguf file",
            is_path=True,
        ),
        Option(
            "chat-template",
            "in place of the model's: a Jinja file, or the format that it was trained with: "
            + ", ".join(NAMES),
            is_path=True,
        ),
        Option(
            "max-model-len",
            "tokens of a prompt and its output together, at most; 0: the model's context",
        ),
        Option(
            "model-impl",
            "srt, or on torch transformers; auto: transformers for models that srt does not know",
            choices=("auto", "srt", "transformers"),
        ),
        Option(
            "sampling-defaults",
            "temperature, top_p, top_k, min_p and repetition_penalty of requests without: as the "
            "model's files say, or 1, 1, off, off, 1",
            choices=("model", "neutral"),
        ),
        Option(
            "dtype",
            "torch: weights and KV; auto: float32 on a CPU",
            choices=("auto", "float32", "bfloat16", "float16"),
        ),
        Option(
            "kv-cache-dtype",
            "KV cache; native: float16, int16 or float32 (auto: by level and model); torch: as "
            "--dtype (auto) or fp8_e4m3",
            choices=("auto", "float16", "int16", "float32", "fp8_e4m3"),
        ),
        Option(
            "quantization",
            "native: how to quantise weights that the file does not",
            choices=("none", "q8", "q4"),
        ),
        Option("exact", "native: float32 weights and KV cache, for parity with a reference"),
        Option(
            "activations",
            "native: bits of activations of quantised weights; 12: 16 where that takes no longer; "
            "auto: 12 below 1.5 billion parameters, above 16 where that takes no longer than 8",
            choices=("auto", "8", "12", "16"),
        ),
    ),
    "Where it is reached": (
        Option("host", "address to listen on"),
        Option("port", "HTTP port; 0 picks a free one"),
        Option("no-http", "serve the ZeroMQ ring only"),
        Option("no-ui", "serve no page at /"),
        Option(
            "cors-allow-origins",
            "web origins that may call, separated by commas, or *",
            is_list=True,
        ),
        Option(
            "allowed-hosts",
            "without API keys: further names by which the server is called, separated by commas, "
            "or *",
            is_list=True,
        ),
        Option(
            "trusted-proxies",
            "addresses or networks of proxies whose X-Forwarded-For says who calls (default: none)",
            is_list=True,
        ),
        Option("max-connections", "HTTP connections; beyond: one that is idle is closed"),
        Option(
            "min-body-rate", "bytes a second of a request's body, measured over 60 s; below: 408"
        ),
        Option(
            "ring-dir",
            "private directory for the ring's sockets (default: a new one)",
            is_path=True,
        ),
    ),
    "Who may use it": (
        Option(
            "api-key", "bearer tokens for HTTP, separated by commas", is_list=True, is_secret=True
        ),
        Option(
            "api-key-file", "file of further bearer tokens, one per line, with limits", is_path=True
        ),
        Option(
            "admin-api-key",
            "bearer tokens of admins, who may also flush and abort all",
            is_list=True,
            is_secret=True,
        ),
        Option(
            "admin-api-key-file",
            "file of further bearer tokens of admins, one per line",
            is_path=True,
        ),
        Option(
            "share-cache-between-keys",
            "prompts under several API keys share KV: each may find out what others have sent",
        ),
    ),
    "What it runs on": (
        Option("device", "torch device, such as cpu or cuda"),
        Option("executor", "what runs the model", choices=("auto", "native", "torch")),
        Option("threads", "compute threads of each replica; 0: its share of all cores"),
        Option(
            "dp",
            "replicas: schedulers with a copy of the model and a KV pool each; 0: none here, only "
            "those of --remote-replicas",
        ),
        Option("remote-replicas", "places for replicas of other machines, which agents join"),
        Option("cluster-bind", "where agents join: tcp://HOST:PORT; port 0: any free one"),
        Option(
            "cluster-keys",
            "the directory of this server's key, and of those that may join (`srt keys DIR`)",
            is_path=True,
        ),
        Option("cluster-insecure", "agents join without keys; for loopback addresses only"),
        Option(
            "cluster",
            "what starts the agents of --remote-replicas: nothing of ours, or Ray",
            choices=("none", "ray"),
        ),
        Option("replica-resources", "what Ray sets aside for each of them, as JSON"),
        Option(
            "router-policy",
            "which replica gets a request",
            choices=("cache-aware", "least-loaded", "round-robin", "random"),
        ),
        Option(
            "max-total-tokens",
            "size of the KV pool, in tokens; 0: what memory allows",
        ),
        Option("mem-fraction-static", "CUDA: part of the free memory for weights and KV pool"),
        Option(
            "attention-backend",
            "torch: attention; auto: on CUDA triton, else flashinfer, and on a CPU reference",
            choices=("auto", "flashinfer", "triton", "reference"),
        ),
        Option("disable-cuda-graph", "CUDA: launch each kernel of a decode by itself"),
        Option(
            "deterministic",
            "CUDA: attention that does not depend on the batch: fixed splits, no cascade; slower",
        ),
    ),
    "How many requests, and in which order": (
        Option(
            "max-running-requests", "requests in the batch at once; fewer where memory is short"
        ),
        Option("max-queued-requests", "requests in flight before 429"),
        Option("max-queued-tokens", "prompt tokens in flight before 429"),
        Option("max-queue-wait", "expected wait of a new request in seconds; beyond: 429"),
        Option("chunked-prefill-size", "token budget of one step"),
        Option("step-target-ms", "of a step with prefills or guesses; 0: 3.6 times one without"),
        Option(
            "schedule-policy",
            "order of admission",
            choices=("app", "lpm", "dfs-weight", "fcfs", "random"),
        ),
        Option("schedule-max-wait", "seconds by which a later request may overtake"),
        Option("fair-wait", "seconds until a caller above its share gives way to one below"),
        Option(
            "programs-ahead",
            "compute prompts of a program's calls while their inputs are made, where nobody else "
            "is the worse for it",
            choices=("on", "off"),
        ),
        Option("disable-radix-cache", "reuse nothing between requests"),
        Option("disable-overlap-schedule", "plan each step after the previous one (lag 0)"),
    ),
    "What answers are like": (
        Option("stream-interval", "tokens between two events of a stream"),
        Option(
            "unknown-fields",
            "of requests to the OpenAI and Anthropic routes: ignored and named in the answer's "
            "header x-ignored-fields, or refused",
            choices=("warn", "refuse"),
        ),
        Option("strict-model", "refuse requests for a model of another name"),
        Option("random-seed", "seed of unseeded requests; -1: a fresh one"),
        Option(
            "reasoning-parser",
            "reasoning in chats; auto: by the template",
            choices=("auto", "think", "none"),
        ),
        Option(
            "allow-special-tokens-in-content",
            "control tokens that users write in chats are tokens: any user can make turns",
        ),
        Option(
            "system-line-last",
            "pattern of lines to move to a system text's end, so that what is before stays cached",
        ),
        Option("response-store-mib", "MiB to keep answers of /v1/responses in; 0: keep none"),
        Option(
            "speculative",
            "guess tokens and verify several at once: from all sources if that pays, or from one",
            choices=("auto", "off", "own", "tree"),
        ),
        Option("speculative-max-tokens", "tokens to guess for a request in a step, at most"),
    ),
    "Output of a given form": (
        Option(
            "grammar-backend",
            "fsm: if regular, else llguidance",
            choices=("fsm", "llguidance", "xgrammar"),
        ),
        Option("grammar-compile-timeout", "CPU seconds that one compilation may take"),
        Option("grammar-compile-memory", "MiB that one compilation may take"),
        Option(
            "grammar-cache-dir",
            "compiled grammars; auto: ~/.cache/srt/grammars; none: off",
            is_path=True,
        ),
        Option("disable-jump-forward", "sample forced text token by token"),
        Option(
            "close-constrained",
            "end all constrained outputs within their limit, not only JSON and required calls",
        ),
        Option(
            "open-objects",
            "objects that list properties may have others, where their JSON schemas do not say",
        ),
    ),
    "Pictures and videos": (
        Option("limit-media", "pictures and videos of one request; 0: none"),
        Option(
            "media-domain",
            "hosts, separated by commas, that pictures may be fetched from (default: none)",
            is_list=True,
        ),
        Option(
            "media-queue-mb",
            "MB of files and pixels of a caller's requests in flight before 429; of all double",
        ),
        Option("media-cache-mb", "MB of embeddings of pictures that are kept"),
    ),
    "When something ends or breaks": (
        Option("drain-timeout", "seconds that SIGTERM leaves to requests in flight"),
        Option(
            "resume-timeout",
            "how long requests wait in seconds for another scheduler when theirs has died",
        ),
        Option(
            "queue-while-restarting",
            "new requests wait for that scheduler too, instead of getting a 503",
        ),
        Option(
            "step-timeout", "seconds that a step may take before its process is replaced; 0: any"
        ),
        Option(
            "part-timeout",
            "seconds that another process may be silent before it is replaced; 0: any",
        ),
    ),
    "What it tells": (
        Option("log-level", "how much to log", choices=("debug", "info", "warning", "error")),
        Option("check-invariants", "check the scheduler's invariants after every step (slow)"),
        Option(
            "record-trace", "file to record the scheduler's inputs to, for replay", is_path=True
        ),
        Option(
            "kv-events",
            "address to publish cached blocks at, as vLLM does: tcp://HOST:PORT or ipc://PATH",
        ),
        Option("kv-events-replay", "address where subscribers ask for what they have missed"),
        Option("kv-events-topic", "first frame of each published message"),
        Option(
            "kv-events-public",
            "these addresses may be of other machines: whoever reads there sees prompts' token ids",
        ),
    ),
}


def all_options() -> Iterator[Option]:
    """Those of all groups, in their order."""
    for options in GROUPS.values():
        yield from options
