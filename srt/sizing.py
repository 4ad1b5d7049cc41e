"""How large the KV pool and the batch are where nobody says it: by the memory that there is, of
the machine or of the control group. CUDA devices measure their own."""

import logging
import mmap
from collections.abc import Container
from typing import NamedTuple

from msgspec.structs import replace

from srt.args import ServerArgs, torch_option
from srt.files.context import capped
from srt.files.gguf import BLOCK_TYPES
from srt.files.model_files import resolve_model
from srt.files.sizes import ModelSizes, model_sizes
from srt.machine import memory_available
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

_MIB, _GIB = 2**20, 2**30
# What all processes take without weights and pool, and each further scheduler.
OTHERS, _SCHEDULER = 512 * _MIB, 192 * _MIB
# Of what is left: the rest is for grammars, pictures, file caches and other programs.
_SHARE = 0.5
_LEAST_TOKENS = 512
# With fewer tokens for each, requests in a batch would only push each other out.
_TOKENS_EACH = 256
_ROUND_TO = 512
# What a pool is to hold: this many tokens of each request that runs, or whole contexts where these
# are more, as of the conversations of a few agents. `useful_tokens` says it.
_TOKENS_RUNNING = 2048
_CONTEXTS_KEPT = 16
# What `--quantization` makes of weights, by ggml's ids of Q8_0 and Q4_1. Norms and routers stay.
_QUANTIZED = {"q8": BLOCK_TYPES[8], "q4": BLOCK_TYPES[3]}

# Fields of ServerArgs that are filled in here where nobody has chosen them.
SIZES = ("max_total_tokens", "max_running_requests")


class MemoryShort(ConfigError):
    """Not even the smallest pool fits."""


class Plan(NamedTuple):
    """What a server takes: bytes of the weights and of a token in the pool, of each replica, and
    the sizes that were chosen, in tokens and requests. `room_tokens` is what memory allows."""

    available: int
    weight_bytes: int
    token_bytes: int
    context_len: int
    pool_tokens: int
    running: int
    room_tokens: int

    @property
    def pool_bytes(self) -> int:
        """Of each replica's pool once it is full."""
        return self.pool_tokens * self.token_bytes

    def __str__(self) -> str:
        useful = self.pool_tokens < self.room_tokens // _ROUND_TO * _ROUND_TO
        of_use = f", as much as is of use ({self.room_tokens} would fit)" if useful else ""
        return (
            f"{self.available / _GIB:.1f} GiB available, weights {self.weight_bytes / _GIB:.2f} "
            f"GiB; pool {self.pool_tokens} tokens of {self.token_bytes / 1024:.1f} KiB: "
            f"{self.pool_bytes / _GIB:.2f} GiB when it is full{of_use}"
        )

    def log(self) -> None:
        """Write it to the log, once nothing else keeps the server from starting."""
        log.info("memory  %s", self)
        if self.pool_tokens < self.context_len:
            text = "requests have room for %d tokens, of %d that the model can: memory is short"
            log.warning(text, self.pool_tokens, self.context_len)


def with_choices(args: ServerArgs, chosen: Container[str]) -> ServerArgs:
    """`args`, not sized yet, which say from now on what of their sizes somebody has chosen: the
    fields that are among `chosen`, and not 0, which leaves it to the server."""
    names = (name for name in SIZES if name in chosen and getattr(args, name))
    return replace(args, chosen_sizes=tuple(names))


def without_sizes(args: ServerArgs) -> ServerArgs:
    """`args` as they were before they were sized by the memory of the machine that they come from:
    another one may have more, or less. They must say what was chosen."""
    defaults = {
        name: getattr(ServerArgs(), name) for name in SIZES if name not in args.chosen_sizes
    }
    return replace(args, planned_bytes=0, **defaults)


def sized(args: ServerArgs, chosen: Container[str]) -> tuple[ServerArgs, Plan | None]:
    """`args` with a pool and a batch that memory has room for, and what these were chosen by;
    `chosen` are the fields that somebody has set, which stay. A model whose files do not tell its
    size is left alone.

    Raises MemoryShort, with figures, if the model does not fit.
    """
    if args.is_cuda or args.dp == 0:  # no pool, or none in this memory
        return args, None
    try:
        sizes = model_sizes(resolve_model(args.model))
    except ConfigError as error:  # as the parts will say, if they cannot load it either
        log.debug("the pool has its default size: %s", error)
        return args, None
    available = memory_available()
    if args.max_total_tokens:
        weights, token_bytes = _bytes_of(args, sizes)
        _require_mapping(args.max_total_tokens, args.max_total_tokens * token_bytes)
        needed = args.dp * (weights + args.max_total_tokens * token_bytes)
        if needed > available:
            log.warning(
                "weights and a full pool of %d tokens take %.1f GiB, and %.1f GiB are available: "
                "the system may end the server; without --max-total-tokens the pool would fit",
                *(args.max_total_tokens, needed / _GIB, available / _GIB),
            )
        return args, None
    plan = plan_for(args, sizes, available)
    running = args.max_running_requests if "max_running_requests" in chosen else plan.running
    planned = replace(
        args,
        max_total_tokens=plan.pool_tokens,
        planned_bytes=available,
        max_running_requests=running,
    )
    return planned, plan


def _require_mapping(tokens: int, num_bytes: int) -> None:
    """Raise MemoryShort if the system would not even reserve the addresses of such a pool."""
    try:
        mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryShort(
            f"--max-total-tokens {tokens}: a pool of {num_bytes / _GIB:.1f} GiB, which the system "
            f"refuses ({error}): without this option the pool has a size that fits"
        ) from error


def plan_for(args: ServerArgs, sizes: ModelSizes, available: int) -> Plan:
    """What `args` leave open, for a model of these sizes and so many bytes of memory.

    Raises MemoryShort.
    """
    weights, token_bytes = _bytes_of(args, sizes)
    rest = available - args.dp * weights - OTHERS - (args.dp - 1) * _SCHEDULER
    room = int(_SHARE * rest / args.dp) // token_bytes
    if room < _LEAST_TOKENS:
        raise MemoryShort(
            f"{available / _GIB:.2f} GiB of memory are available, and the model needs "
            f"{(args.dp * weights) / _GIB:.2f} GiB for its weights, {OTHERS / _GIB:.2f} GiB for "
            "what serves it, and a pool: take a smaller model or quantisation, or allow more "
            "memory (--max-total-tokens goes without this check)"
        )
    context_len = capped(sizes.context_len, args.max_model_len)
    useful = useful_tokens(args.max_running_requests, context_len)
    tokens = useful if useful <= room else room // _ROUND_TO * _ROUND_TO
    running = running_within(args, tokens, context_len)
    return Plan(available, weights, token_bytes, context_len, tokens, running, room)


def useful_tokens(max_running: int, context_len: int) -> int:
    """A pool of so many tokens serves a batch of `max_running` requests with a cache beside it:
    room for 2,048 tokens of each, or for 16 whole contexts if these are more. Beyond that memory is
    worth more to other programs, and to the file cache."""
    return max(max_running * min(context_len, _TOKENS_RUNNING), _CONTEXTS_KEPT * context_len)


def running_within(args: ServerArgs, tokens: int, context_len: int) -> int:
    """How many requests a batch has at once with a pool of so many tokens."""
    each = min(_TOKENS_EACH, context_len)
    return min(args.max_running_requests, max(1, tokens // each))


def _bytes_of(args: ServerArgs, sizes: ModelSizes) -> tuple[int, int]:
    """What the weights take, and a token in the pool."""
    if args.executor == "torch" or torch_option(args):
        width = 2 if args.dtype in ("bfloat16", "float16") else 4
        of_pool = 1 if args.kv_cache_dtype == "fp8_e4m3" else width
        return sizes.float32_bytes * width // 4, sizes.kv_values * of_pool
    weights = sizes.float32_bytes if args.exact else sizes.weight_bytes
    if args.quantization != "none" and not args.exact:
        weights = sizes.float32_bytes // 4 * _QUANTIZED[args.quantization].num_bytes // 32
    if args.exact or args.kv_cache_dtype == "float32":
        return weights, 4 * sizes.kv_values
    # What "auto" means depends on the processor: the larger of its two.
    scales = 0 if args.kv_cache_dtype == "float16" else 4 * sizes.kv_heads
    return weights, 2 * sizes.kv_values + scales
