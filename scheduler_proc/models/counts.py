"""Bounds what a config.json of an architecture that others compute may count: transformers makes
objects of all layers, experts and labels before it looks at the weights."""

import re
from pathlib import Path
from typing import Any

import msgspec

from scheduler_proc.models.checkpoint import safetensors_files
from scheduler_proc.models.safetensors_file import SafetensorsFile
from srt.files.model_files import require_file
from srt.files.sizes import MAX_LAYERS
from srt.wire.errors import ConfigError

# Keys of what there is an object of each; of layers, which have a tensor each; and of sizes, of
# which there are as many values in a tensor. Other numbers of things make tensors at most.
_COUNTS = re.compile(r"(layers?|blocks?|experts?|heads?|labels)$")
_LAYERS = re.compile(r"(^|_)num_hidden_layers$|^(n|num)_layers?$")
_WIDTHS = re.compile(r"(hidden|intermediate)_size$|^n_embd$|_dim$")
_MOST = 2**16  # of anything but layers: there are models of 2**14 experts


def check_counts(path: Path) -> None:
    """Raise ConfigError, which names the key, if config.json of the model directory at `path` has
    more layers than the weights have tensors, a width above their bytes, or more of anything
    than a model has."""
    file = path / "config.json"
    require_file(file)
    try:
        places = [msgspec.json.decode(file.read_bytes(), type=dict[str, Any])]
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not readable as JSON ({error})") from error
    names = (path / name for name in safetensors_files(path))
    weights = [SafetensorsFile(name) for name in names if name.is_file()]
    limits = [(_LAYERS, MAX_LAYERS, "of them"), (_COUNTS, _MOST, "of them")]
    if weights:  # that there are none is said by others
        limits += [
            (_LAYERS, sum(len(each.tensors) for each in weights), "tensors"),
            (_WIDTHS, sum(each.num_bytes for each in weights), "bytes of weights"),
        ]
    for place in places:
        places += [value for value in place.values() if isinstance(value, dict)]
        for key, value in place.items():
            for kind, most, what in limits:
                if isinstance(value, int) and value > most and kind.search(key):
                    raise ConfigError(f"{file}: {key} is {value}; there are at most {most} {what}")
