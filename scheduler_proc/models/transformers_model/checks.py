"""What must hold of a model so that it may run on ragged batches, checked once at load.

The model takes the tokens of a batch for one sequence. So what it hands to attention for a token,
and what it makes of the answer, must follow from that token, its position and attention alone: not
from the other tokens of the batch (state-space layers, linear attention, convolutions), nor from
where in the batch it stands. Both are tried, with attention that keeps tokens apart.
"""

from typing import Any, NamedTuple

import torch
from torch import nn

from scheduler_proc.attention.base import LayerKind
from scheduler_proc.models.transformers_model.attention import Trace, running
from scheduler_proc.models.transformers_model.split import SplitModel
from srt.wire.errors import ConfigError

MAX_TOKENS = 16

# How far two results on the same token may be apart, relative to their size: by rounding, and in
# 16 bits by another choice between experts of nearly equal weight.
_TOLERANCE, _TOLERANCE_16_BIT = 1e-3, 0.2


class _Tokens(NamedTuple):
    """A batch, and which of its tokens is looked at."""

    ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    at: int


class _Run(NamedTuple):
    """The results of a batch: `results` are q, k, v of each attention call, and hidden states."""

    kinds: list[LayerKind]
    results: list[torch.Tensor]  # each [T, ...]


def check_and_split(
    causal: Any, vocab_size: int, context_len: int
) -> tuple[SplitModel, list[LayerKind]]:
    """`causal` with its decoder taken out, and the attention calls of a forward pass.

    Raises ConfigError saying why the model cannot run on ragged batches.
    """
    tokens = _sequence(vocab_size, context_len, causal.device)
    decoder, logits = _run_whole(causal, tokens)
    if logits.shape[-1] != vocab_size:
        raise ConfigError(f"it makes {logits.shape[-1]} logits for a vocabulary of {vocab_size}")
    split = SplitModel(causal, decoder)
    run = _run(split, tokens, checks_masks=True)
    if not _are_close(split.logits(run.results[-1]), logits):
        raise ConfigError("it makes logits of more than the last hidden states")
    others = _other_tokens(tokens, vocab_size)
    if not _agree(run, tokens.at, _run(split, others), others.at):
        raise ConfigError("tokens reach each other by other ways than attention")
    moved = _elsewhere(others, context_len)
    if not _agree(run, tokens.at, _run(split, moved), moved.at):
        raise ConfigError("it computes a token by the positions of others, or by its place")
    return split, run.kinds


def _sequence(vocab_size: int, context_len: int, device: torch.device) -> _Tokens:
    """The first positions of a sequence: a model that looks for several in a batch finds one."""
    positions = torch.arange(min(MAX_TOKENS, context_len), device=device)
    return _Tokens((positions * 37 + 5) % vocab_size, positions, len(positions) * 2 // 3)


def _other_tokens(tokens: _Tokens, vocab_size: int) -> _Tokens:
    """All tokens changed but the one that is looked at."""
    ids = (tokens.ids + 1 + tokens.positions % max(1, vocab_size - 1)) % vocab_size
    ids[tokens.at] = tokens.ids[tokens.at]
    return tokens._replace(ids=ids)


def _elsewhere(tokens: _Tokens, context_len: int) -> _Tokens:
    """The token that is looked at comes first, and others have the last positions there are."""
    order = torch.roll(torch.arange(len(tokens.ids)), -tokens.at)
    positions = context_len - 1 - tokens.positions
    positions[0] = tokens.positions[tokens.at]
    return _Tokens(tokens.ids[order], positions, 0)


def _run_whole(causal: Any, tokens: _Tokens) -> tuple[nn.Module, torch.Tensor]:
    """What makes the hidden states that the model's head takes; logits [T, vocab_size]."""
    base = causal.base_model
    if base is causal:
        raise ConfigError("its class does not separate its head from its decoder")
    called: list[bool] = []
    hook = base.register_forward_hook(lambda *_: called.append(True))
    trace = Trace(checks_masks=True)
    with running(trace):
        logits: torch.Tensor = causal(
            input_ids=tokens.ids[None], position_ids=tokens.positions[None], use_cache=False
        ).logits[0]
    hook.remove()
    if not trace.kinds:
        raise ConfigError("it has no attention that could be replaced by ours")
    # The heads of some classes (OPT) call what is within the base model.
    return base if called else base.get_decoder(), logits.float()


def _run(split: SplitModel, tokens: _Tokens, *, checks_masks: bool = False) -> _Run:
    trace = Trace(checks_masks=checks_masks)
    hidden = split.hidden(tokens.ids, tokens.positions, trace)
    return _Run(trace.kinds, [*trace.results, hidden])


def _agree(run: _Run, at: int, other: _Run, other_at: int) -> bool:
    """Whether token `at` of one run has the results of token `other_at` of the other."""
    pairs = zip(run.results, other.results, strict=True)
    return run.kinds == other.kinds and all(_are_close(a[at], b[other_at]) for a, b in pairs)


def _are_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    tolerance = _TOLERANCE if a.dtype == torch.float32 else _TOLERANCE_16_BIT
    return bool((a.float() - b.float()).norm() <= tolerance * a.float().norm())
