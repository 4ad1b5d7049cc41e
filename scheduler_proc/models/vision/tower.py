"""What the towers of all families have in common."""

from typing import Any

from scheduler_proc.models.vision.pixels import Normalise


class Tower:
    """A model of transformers without its decoder, and how its pixels are normalised."""

    sees_both_ways = has_grid_positions = False

    def __init__(self, model: Any, normalise: Normalise) -> None:
        self._model, self._normalise = model, normalise
        self.width: int = model.config.get_text_config().hidden_size

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take."""
        tensors = (*self._model.parameters(), *self._model.buffers())
        return sum(t.numel() * t.element_size() for t in tensors)
