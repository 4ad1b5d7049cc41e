"""transformers' own model of the embedded GGUF, in float32: parity is measured against it.

Names, shapes and the order of rope rows come from transformers' GGUF code, not from ours. (Its
`from_pretrained(gguf_file=...)` does the same but needs accelerate.) One model per process; it
takes some ten seconds and half a gigabyte.
"""

from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import gguf
import numpy as np

from srt.files.model_files import DEFAULT_MODEL, resolve_model
from tests.running.late import late

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = late("torch")
    transformers = late("transformers")


@cache
def reference_model() -> Any:
    """A transformers LlamaForCausalLM in float32, evaluation mode, weights dequantised."""
    path = resolve_model(DEFAULT_MODEL).path
    make_model: Any = transformers.AutoModelForCausalLM.from_config
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    read_gguf: Any = load_gguf_checkpoint
    # transformers reads the file for its configuration and again for the weights, makes the same
    # map of all names for each module of the model, and cuts a million pieces out of a memmap,
    # which takes several times as long as out of an array: 14 s in all instead of 6.
    with (
        mock.patch.object(np, "memmap", lambda path, **_: np.fromfile(path, np.uint8)),
        mock.patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)),
        mock.patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        model = make_model(config, dtype=torch.float32).eval()
        loaded = read_gguf(str(path), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(loaded["tensors"], strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return model


def reference_logits(ids: list[int]) -> "torch.Tensor":
    """Logits [len(ids), vocab_size] float32 of one sequence."""
    with torch.inference_mode():
        logits: torch.Tensor = reference_model()(torch.tensor([ids])).logits[0]
    return logits
