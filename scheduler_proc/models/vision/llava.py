"""LLaVA-1.5, LLaVA-NeXT and LLaVA-OneVision: a part is a tile, or a frame of a video."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scheduler_proc.models.vision.tower import Tower
from srt.wire.media import MediaItem


class Llava(Tower):
    """One tile is the whole picture."""

    def num_parts(self, item: MediaItem) -> int:
        """Its tiles."""
        return item.shape[0]

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int) -> torch.Tensor:
        """The projected features of one tile, [1, patches, hidden]."""
        config, model = self._model.config, self._model
        layers = config.vision_feature_layer
        shown = self._normalise(pixels[part : part + 1], item.kind)
        states = model.vision_tower(shown, output_hidden_states=True).hidden_states
        chosen = [layers] if isinstance(layers, int) else layers
        features = [states[layer] for layer in chosen]
        if config.vision_feature_select_strategy == "default":
            features = [feature[:, 1:] for feature in features]  # without the class token
        projected: torch.Tensor = model.multi_modal_projector(torch.cat(features, dim=-1))
        return projected

    def join(self, item: MediaItem, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tile's features."""
        return parts[0][0]


class LlavaNext(Llava):
    """The whole picture, then its tiles in rows, cut to the picture's shape, with a further
    embedding at the end of each row."""

    def join(self, item: MediaItem, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """All features in the order of the prompt's tokens."""
        model = self._model
        packed, _ = model.pack_image_features(
            [torch.cat(list(parts))], torch.tensor([item.size]), **self._how()
        )
        result: torch.Tensor = packed[0]
        return result

    def _how(self) -> dict[str, Any]:
        strategy = self._model.config.vision_feature_select_strategy
        newline = self._model.image_newline
        return {"vision_feature_select_strategy": strategy, "image_newline": newline}


class LlavaOnevision(LlavaNext):
    """As LLaVA-NeXT, with fewer features of large pictures; a video's frames are pooled."""

    def join(self, item: MediaItem, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """All features in the order of the prompt's tokens."""
        if item.kind != "video":
            return super().join(item, parts)
        pooled = self._model.apply_pooling(torch.cat(list(parts)))
        newline = self._model.image_newline[None].to(pooled)
        return torch.cat((pooled.flatten(0, 1), newline))

    def _how(self) -> dict[str, Any]:
        newline, aspect = self._model.image_newline, self._model.config.vision_aspect_ratio
        return {"image_newline": newline, "vision_aspect_ratio": aspect}
