"""transformers' attention over our KV pool: what its layers call in place of their own attention.

Registered with transformers under NAME when this module is imported. A layer hands over q, k and v
of all tokens of a ragged batch, which it takes for one sequence; what becomes of them depends on
the `Forward` that is current: `Trace` records the layers once, at load, `PoolForward` runs them.
What a layer wants beyond causal attention with a scale, a window, a soft cap and sinks is a
ConfigError.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from scheduler_proc.attention.base import LayerKind, LayerTensors
from scheduler_proc.attention.kv_store import store
from scheduler_proc.models.decoder import KVPool, TokenLayout
from srt.wire.errors import ConfigError

NAME = "srt_ragged"

# Arguments of layers that change nothing here: positions have been applied to q and k, nothing is
# dropped out, what else is to be cached or returned is not asked for.
_HARMLESS = frozenset(
    (
        *("position_ids", "dropout", "use_cache"),
        *("output_attentions", "output_hidden_states", "output_router_logits"),
    )
)


@dataclass(frozen=True, slots=True)
class CausalMask:
    """Stands for a mask on its way through a model: causal, within `window` tokens if not None.

    A model may cut it to the lengths of queries and keys, which our attention knows by itself, and
    do nothing else with it.
    """

    window: int | None

    def __getitem__(self, _: object) -> "CausalMask":
        return self


class AttentionInputs(NamedTuple):
    """The tensors of one attention call: q [T, heads, head_dim], k [T, kv_heads, head_dim],
    v [T, kv_heads, value_dim], and sinks [heads] if the layer has them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None


class Forward(Protocol):
    """What is done with the attention calls of one forward pass, in their order."""

    checks_masks: bool

    def attend(self, kind: LayerKind, given: AttentionInputs) -> torch.Tensor:
        """The outputs, [T, heads, value_dim]."""
        ...


_current: ContextVar[Forward] = ContextVar("forward")


@contextmanager
def running(forward: Forward) -> Iterator[None]:
    """Attention calls within go to `forward`."""
    token = _current.set(forward)
    try:
        yield
    finally:
        _current.reset(token)


class Trace:
    """Records the calls and what each is given; every token attends to itself alone."""

    def __init__(self, *, checks_masks: bool) -> None:
        self.checks_masks = checks_masks
        self.kinds: list[LayerKind] = []
        self.results: list[torch.Tensor] = []  # q, k, v of the first call, of the second, ...

    def attend(self, kind: LayerKind, given: AttentionInputs) -> torch.Tensor:
        """See Forward.attend."""
        self.kinds.append(kind)
        self.results += [given.q, given.k, given.v]
        return given.v.repeat_interleave(kind.heads // kind.kv_heads, dim=1)


class PoolForward:
    """One step: writes each call's K and V to the out slots, attends by the step's plan, in
    `dtype`."""

    checks_masks = False

    def __init__(
        self, kinds: list[LayerKind], layout: TokenLayout, pools: KVPool, dtype: torch.dtype
    ) -> None:
        self._kinds = kinds
        self._dtype = dtype
        self._layout = layout
        self._pools = pools
        self._num_calls = 0

    def attend(self, kind: LayerKind, given: AttentionInputs) -> torch.Tensor:
        """See Forward.attend. Raises RuntimeError if the model calls otherwise than at load."""
        call, self._num_calls = self._num_calls, self._num_calls + 1
        if call >= len(self._kinds) or kind != self._kinds[call]:
            raise RuntimeError(f"attention call {call} is not the one that the model had at load")
        k_pool, v_pool = self._pools.k[call], self._pools.v[call]
        store(k_pool, self._layout.out_slots, given.k, 1.0)
        store(v_pool, self._layout.out_slots, given.v, 1.0)
        attended = self._layout.attention.run(
            kind, given.q.to(self._dtype).contiguous(), LayerTensors(k_pool, v_pool, given.sinks)
        )
        return attended.to(given.q.dtype)

    def check_finished(self) -> None:
        """Raise RuntimeError unless every attention call of the model came."""
        if self._num_calls != len(self._kinds):
            raise RuntimeError(f"{self._num_calls} attention calls instead of {len(self._kinds)}")


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: [1, heads, T, dim] in, [1, T, heads, dim] out.
    `s_aux` are a layer's sinks."""
    name = type(module).__name__
    mask = _checked_mask(name, attention_mask, sliding_window, is_causal)
    for key_name, given in others.items():
        if given is not None and key_name not in _HARMLESS:
            raise ConfigError(f"{name} uses {key_name}, which our attention does not have")
    q, k, v = (t.squeeze(0).transpose(0, 1) for t in (query, key, value))
    if q.ndim != 3 or len(q) != len(k) or q.shape[1] % k.shape[1]:
        raise ConfigError(f"{name} attends with q {list(query.shape)} and k {list(key.shape)}")
    kind = LayerKind(
        heads=q.shape[1],
        kv_heads=k.shape[1],
        head_dim=k.shape[2],
        value_dim=v.shape[2],
        scale=k.shape[2] ** -0.5 if scaling is None else float(scaling),
        window=mask.window,
        softcap=None if softcap is None else float(softcap),
        sinks=s_aux is not None,
    )
    if s_aux is not None and s_aux.shape != (kind.heads,):
        raise ConfigError(f"{name} attends with {kind.heads} heads and sinks {list(s_aux.shape)}")
    return _current.get().attend(kind, AttentionInputs(q, k, v, s_aux))[None], None


def _checked_mask(
    name: str, mask: object, window: int | None, is_causal: bool | None
) -> CausalMask:
    """The mask that our mask function made for the layer, if that is all that masks it."""
    if not isinstance(mask, CausalMask):
        raise ConfigError(f"{name} computes its own attention mask or adds to it, such as ALiBi")
    if is_causal is False:
        raise ConfigError(f"{name} is not causal")
    if window is not None and window != mask.window:
        raise ConfigError(f"{name} has a window of {window} tokens and a mask of {mask.window}")
    return mask


def _mask(
    *,
    mask_function: Callable[..., torch.Tensor],
    local_size: int | None = None,
    use_vmap: bool = False,
    **_: Any,
) -> CausalMask:
    """A mask function of transformers. `local_size` is the size of a window or of a chunk."""
    if use_vmap:
        raise ConfigError("its attention mask has more to it than a window")
    if _current.get().checks_masks and not _is_causal(mask_function, local_size):
        raise ConfigError("its attention mask is neither causal nor a sliding window")
    return CausalMask(local_size)


def _is_causal(mask_function: Callable[..., torch.Tensor], window: int | None) -> bool:
    """Whether `mask_function` lets a token see itself and all before it, within the window."""
    size = window or 64
    at = torch.tensor(sorted({0, 1, 2, *(n * size + d for n in (1, 2, 3) for d in (-1, 0, 1))}))
    zero = torch.zeros((), dtype=torch.int64)
    q, k = at[:, None], at[None, :]
    expected = k <= q
    if window is not None:
        expected &= k > q - window
    return torch.equal(mask_function(zero, zero, q, k).expand(expected.shape), expected)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
