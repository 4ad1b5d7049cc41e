"""How a model's files say that it should be sampled where a request does not say it.

Only what `SamplingDefaults` has is read: lengths, `do_sample` and other methods of sampling are
not. A wrong value is left out with a line that says so; it never keeps a server from starting.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from srt.wire.filled_params import SamplingDefaults
from srt.wire.sampling import SamplingParams, rules_of

GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
_RULES = {
    name: rule
    for name, rule in rules_of(SamplingParams)
    if name in SamplingDefaults.__struct_fields__
}
_NOT_USED = "is not used: the neutral value is"


class Default(Struct, frozen=True):
    """A default, and the name of the file that it is from, or "neutral"."""

    value: float | int
    source: str


class ModelSampling(Struct, frozen=True):
    """`values`, of fields of `SamplingDefaults`, are those that the file `source` has; `problems`
    is a line for each that is not used."""

    source: str = ""
    values: Mapping[str, float | int] = {}
    problems: tuple[str, ...] = ()

    def under(self, option: str) -> "ModelSampling":
        """What there is of it under --sampling-defaults `option`, "model" or "neutral"."""
        return self if option == "model" else NO_SAMPLING

    @property
    def defaults(self) -> SamplingDefaults:
        """The values, and neutral ones where there are none."""
        return SamplingDefaults(**self.values)  # type: ignore[arg-type]

    @property
    def sources(self) -> dict[str, Default]:
        """Each default with where it is from."""
        return {
            name: Default(
                getattr(self.defaults, name), self.source if name in self.values else "neutral"
            )
            for name in SamplingDefaults.__struct_fields__
        }


NO_SAMPLING = ModelSampling()


def read_sampling(
    path: Path, found: Mapping[str, Any], kind: Literal["gguf", "hf"]
) -> ModelSampling:
    """The defaults in the content of generation_config.json, or in a GGUF file's metadata. A value
    that is null, as transformers may write it, is none."""
    values: dict[str, float | int] = {}
    problems = []
    for name, rule in _RULES.items():
        key = GGUF_KEYS[name] if kind == "gguf" else name
        if (value := found.get(key)) is None:
            continue
        wanted = int if name == "top_k" else (int, float)
        if isinstance(value, bool) or not isinstance(value, wanted):
            words = f"must be {'an integer' if name == 'top_k' else 'a number'}"
            problems.append(f"{path}: {key} {words}, so {value!r:.60} {_NOT_USED}")
            continue
        if name == "top_k" and value == 0:
            value = -1  # both files' way to write that it is off
        if not rule.holds(value):
            problems.append(f"{path}: {key} {rule.words}, so {value!r:.60} {_NOT_USED}")
            continue
        # GGUF's numbers have 32 bits: 0.6 is meant by what is 0.6000000238.
        values[name] = value if name == "top_k" else float(f"{value:.7g}")
    return ModelSampling(path.name, values, tuple(problems))
