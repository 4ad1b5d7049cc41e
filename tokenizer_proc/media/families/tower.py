"""What the LLaVA families know of their vision towers."""

from tokenizer_proc.media.settings import Checkpoint

# The patch size of a tower that config.json does not describe, and of one whose description has
# none, by its model_type.
_PATCH = 14
_PATCHES = {"clip_vision_model": 32, "siglip_vision_model": 16}


class TowerFeatures:
    """How many embeddings a tower makes of a picture, as the processor's settings say, and
    otherwise the model's. `patch` is the side of a patch in pixels."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        vision, processor = checkpoint.vision, checkpoint.processor
        kind = vision.get("model_type", str, "clip_vision_model")
        if kind not in _PATCHES:
            raise vision.error("model_type", f"{kind!r} is not supported")
        patch = _PATCHES[kind] if checkpoint.config.has("vision_config") else _PATCH
        self.patch = processor.count("patch_size", vision.count("patch_size", patch))
        strategy = "vision_feature_select_strategy"
        selected = processor.get(strategy, str, checkpoint.config.get(strategy, str, "default"))
        if selected not in ("default", "full"):
            raise processor.error(strategy, f"{selected!r} is not supported")
        more = processor.get("num_additional_image_tokens", int, int(kind == "clip_vision_model"))
        self._more = more - (selected == "default")

    def of(self, height: int, width: int) -> int:
        """The embeddings of a picture of this size."""
        return (height // self.patch) * (width // self.patch) + self._more
