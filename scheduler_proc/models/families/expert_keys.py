"""The keys of config.json that mixtures of experts have, and how they make `Experts`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scheduler_proc.models.config import Experts, ExpertsLayout, RouterRule, require
from scheduler_proc.models.families.keys import JsonKeys

# Router rules that the classes of these families do not have, and the values that change nothing.
# Such a key in a file says that it is of a model that is computed otherwise.
_OTHER_RULES: dict[str, tuple[Any, ...]] = {
    "scoring_func": (None, "softmax"),
    "topk_method": (None, "greedy"),
    "n_group": (None, 0, 1),
    "topk_group": (None, 0, 1),
    "routed_scaling_factor": (None, 1.0),
    "moe_router_activation_func": (None, "softmax"),
    "use_expert_bias": (None, False),
    "use_routing_bias": (None, False),
}


class ExpertKeys(JsonKeys, kw_only=True):
    """Keys of every family; transformers takes the number of experts by two names."""

    num_experts: int | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: int
    scoring_func: str | None = None
    topk_method: str | None = None
    n_group: int | None = None
    topk_group: int | None = None
    routed_scaling_factor: float | None = None
    moe_router_activation_func: str | None = None
    use_expert_bias: bool | None = None
    use_routing_bias: bool | None = None


class SparseKeys(ExpertKeys, kw_only=True):
    """Of the families that have MLPs in some layers."""

    moe_intermediate_size: int
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None


def read_experts(
    keys: ExpertKeys,
    path: Path,
    *,
    count: int,
    width: int,
    rule: RouterRule,
    dense: Sequence[bool] = (),
    layout: ExpertsLayout = "separate",
    shared_width: int = 0,
) -> Experts:
    """The mixtures that `keys` describe; `count` is what the family's class has by default. With a
    `shared_width` the shared expert has a gate. Raises ConfigError for a rule that is not
    `rule`."""
    for name, neutral in _OTHER_RULES.items():
        value = getattr(keys, name)
        require(value in neutral, f"{path}: {name} {value!r} is not supported for this model")
    found = [n for n in (keys.num_experts, keys.num_local_experts) if n is not None]
    require(
        len(set(found)) < 2,
        f"{path}: num_experts {keys.num_experts} and num_local_experts {keys.num_local_experts}",
    )
    return Experts(
        count=found[0] if found else count,
        used=keys.num_experts_per_tok,
        width=width,
        rule=rule,
        dense=tuple(dense) if any(dense) else (),
        layout=layout,
        shared_width=shared_width,
        shared_gate=shared_width > 0,
    )


def dense_layers(keys: SparseKeys, path: Path) -> list[bool]:
    """Which layers have an MLP: those that are named, and all that do not end a group of
    `decoder_sparse_step`."""
    step, named = keys.decoder_sparse_step, set(keys.mlp_only_layers or ())
    require(step > 0, f"{path}: decoder_sparse_step {step} is not above 0")
    return [i in named or (i + 1) % step != 0 for i in range(keys.num_hidden_layers)]
