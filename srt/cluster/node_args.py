"""What the head tells a node of its arguments: the fields that a scheduler reads, no keys, and no
sizes that were made of the head's memory. The rest is the node's own."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from srt.args import ServerArgs
from srt.sizing import Plan, sized, without_sizes
from srt.wire.errors import ConfigError

# Fields of ServerArgs. `model` and `tokenizer` are names here, which a node may have elsewhere.
_TOLD = frozenset(
    {"model", "tokenizer", "chat_template", "max_model_len", "model_impl", "dtype"}
    | {"kv_cache_dtype", "quantization", "exact", "activations", "executor", "attention_backend"}
    | {"disable_cuda_graph", "deterministic", "schedule_policy", "schedule_max_wait", "fair_wait"}
    | {"limit_media", "media_cache_mb", "disable_radix_cache", "disable_overlap_schedule"}
    | {"max_total_tokens", "mem_fraction_static", "max_running_requests", "chunked_prefill_size"}
    | {"step_target_ms", "random_seed", "speculative", "speculative_max_tokens"}
    | {"grammar_backend", "grammar_compile_timeout", "grammar_compile_memory"}
    | {"disable_jump_forward", "close_constrained", "open_objects", "sampling_defaults"}
    | {"step_timeout", "part_timeout", "log_level", "check_invariants"}
    | {"fingerprint", "chosen_sizes"}
)


def told_options(args: ServerArgs) -> dict[str, Any]:
    """What the head tells of its arguments."""
    return {name: value for name, value in asdict(without_sizes(args)).items() if name in _TOLD}


def node_args(
    told: Mapping[str, Any], places: int, replicas: int, own: Mapping[str, Any]
) -> tuple[ServerArgs, Plan | None]:
    """The arguments of a node that runs so many `replicas` of a ring's `places`, and what its sizes
    were chosen by. `own` are fields that the node has itself.

    Raises ConfigError for what this version cannot run, and if the model does not fit.
    """
    if replicas > places:
        raise ConfigError(f"--replicas {replicas}: the ring of the head has {places} in all")
    fields = {name: value for name, value in told.items() if name in _TOLD}
    fields |= {"dp": replicas, "remote_replicas": places - replicas, "cluster_insecure": True}
    try:
        args = msgspec.convert(fields | dict(own), ServerArgs)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the head's arguments are not understood: {error}") from error
    args.check()
    return sized(args, args.chosen_sizes)
