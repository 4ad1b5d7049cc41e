"""A causal model of transformers in two parts: what makes hidden states, and what makes logits.

So logits can be had of some tokens only, in parts of any size. The second part is the model's own
class with its decoder taken out, so that what its family does to hidden states or logits is kept.
"""

from typing import Any

import torch
from torch import nn

from scheduler_proc.models.transformers_model.attention import Forward, running


class _DecoderOutput(tuple[torch.Tensor]):
    """What a head takes from a decoder: hidden states; everything else is None."""

    @property
    def last_hidden_state(self) -> torch.Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Given(nn.Module):
    """Stands where the decoder was: returns the hidden states that it was given."""

    hidden: torch.Tensor  # [1, N, hidden]

    def forward(self, *_: Any, **__: Any) -> _DecoderOutput:
        return _DecoderOutput((self.hidden,))


class SplitModel:
    """`causal`, with its module `decoder` taken out."""

    def __init__(self, causal: Any, decoder: nn.Module) -> None:
        self._decoder: Any = decoder
        self._head: Any = causal
        self._given = _Given()
        (name,) = (name for name, module in causal.named_modules() if module is decoder)
        causal.set_submodule(name, self._given)

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take, shared ones counted once."""
        modules = (self._decoder, self._head)
        tensors = {id(t): t for m in modules for t in (*m.parameters(), *m.buffers())}
        return sum(t.numel() * t.element_size() for t in tensors.values())

    def hidden(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward: Forward
    ) -> torch.Tensor:
        """input_ids, positions [T] int64 -> last hidden states [T, hidden]."""
        with running(forward):
            output = self._decoder(
                input_ids=input_ids[None], position_ids=positions[None], use_cache=False
            )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden] -> logits [N, vocab_size] float32."""
        self._given.hidden = hidden[None]
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        logits: torch.Tensor = self._head(input_ids=ids, use_cache=False).logits
        return logits[0].float()
