"""What a repository offers, and which of its files a model needs.

Only what this server reads is taken: safetensors or GGUF, and JSON and text beside them. No code,
and nothing that is pickled.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from srt.hub.names import HubName
from srt.progress import shown
from srt.wire.errors import ConfigError

_SPLIT = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_QUANTISATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F16|F32|FP16|FP32|MXFP\d\w*))(?=$|[-.])",
    re.IGNORECASE,
)
# A part of a model that is not one by itself: projectors of models that see, statistics.
_PARTIAL = re.compile(r"(?:^|[-._])(mmproj|imatrix)", re.IGNORECASE)
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_BESIDE = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "chat_template.jinja", "chat_template.json", "preprocessor_config.json"),
    *("processor_config.json", "video_preprocessor_config.json"),
)
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5")


class RepoFile(NamedTuple):
    """A file of a repository: `size` in bytes, and its SHA-256 where the hub says it."""

    path: str
    size: int
    sha256: str = ""


class Chosen(NamedTuple):
    """The files of one model; `main` is the directory's config.json or the first GGUF part."""

    kind: Literal["gguf", "hf"]
    main: str
    files: list[RepoFile]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the files that hold tensors."""
        suffixes = (".gguf", ".safetensors")
        return sum(file.size for file in self.files if file.path.endswith(suffixes))


class Variant(NamedTuple):
    """One GGUF model of a repository, with all its parts in order."""

    stem: str  # its path without the number of the part and the suffix
    label: str  # its quantisation, or its stem
    parts: list[RepoFile]

    @property
    def size(self) -> int:
        """In bytes, of all parts."""
        return sum(part.size for part in self.parts)


def variants(files: Iterable[RepoFile]) -> list[Variant]:
    """The GGUF models among `files`, the smallest first."""
    stems: dict[str, list[RepoFile]] = {}
    for file in files:
        path = PurePosixPath(file.path)
        if path.suffix.lower() == ".gguf" and not _PARTIAL.search(path.name):
            stem = _SPLIT.sub("", file.path[: -len(path.suffix)])
            stems.setdefault(stem, []).append(file)
    found = [
        Variant(stem, _label(stem), sorted(parts, key=lambda part: part.path))
        for stem, parts in stems.items()
    ]
    return sorted(found, key=lambda variant: (variant.size, variant.stem))


def _label(stem: str) -> str:
    name = PurePosixPath(stem).name
    found: list[str] = _QUANTISATION.findall(name)
    return found[-1].upper() if found else name


def choose(
    name: HubName, files: Sequence[RepoFile], read: Callable[[str], bytes], room: int
) -> Chosen:
    """The files of the model that `name` means. `read` gives the content of a small file; `room`,
    in bytes, is what models may take here, for the table of an ambiguous name.

    Raises ConfigError with what there is, if that is nothing, or more than one model.
    """
    paths = {file.path: file for file in files}
    if name.file or name.variant:
        return _gguf(name, _named(name, files, room))
    if "config.json" in paths and (_WEIGHTS in paths or _INDEX in paths):
        return _safetensors(name, paths, read)
    found = variants(files)
    if len(found) == 1:
        return _gguf(name, found[0])
    if found:
        raise ConfigError(f"{name} has several models: name one.\n{table(name, found, room)}")
    raise ConfigError(f"{name}: {_nothing(paths)}")


def table(name: HubName, found: Sequence[Variant], room: int) -> str:
    """The GGUF models of a repository, a line each, with what one writes to have it."""
    counts = [variant.label for variant in found]
    rows = []
    for variant in found:
        is_plain = counts.count(variant.label) == 1
        own = name._replace(variant=variant.label, file="")
        if not is_plain:
            own = name._replace(variant="", file=variant.parts[0].path)
        fits = "" if variant.size <= room else "  does not fit into this machine's memory"
        rows.append((str(own) if is_plain else f"hf://{own}", variant.size, fits))
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"  {text:{width}}  {shown(size):>9}{fits}" for text, size, fits in rows)


def _named(name: HubName, files: Sequence[RepoFile], room: int) -> Variant:
    found = variants(files)
    if name.file:
        wanted = _SPLIT.sub("", name.file[: -len(".gguf")])
        matches = [variant for variant in found if variant.stem == wanted]
    else:
        label = name.variant.upper()
        matches = [variant for variant in found if variant.label == label]
        # UD-Q4_K_XL of some publishers, by the plain name if no other has it.
        matches = matches or [v for v in found if v.label.removeprefix("UD-") == label]
    if len(matches) == 1:
        return matches[0]
    what = f"has no GGUF file {name.file or name.variant!r}"
    if matches:
        found, what = matches, f"has several files of {name.variant}: name one"
    plain = name._replace(variant="", file="")
    if not found:
        raise ConfigError(f"{plain} {what}, nor any other")
    raise ConfigError(f"{plain} {what}.\n{table(plain, found, room)}")


def _gguf(name: HubName, variant: Variant) -> Chosen:
    first = _SPLIT.search(variant.parts[0].path[: -len(".gguf")])
    count = int(first["count"]) if first else 1
    if len(variant.parts) != count:
        raise ConfigError(f"{name}: {variant.stem} has {len(variant.parts)} parts of {count}")
    return Chosen("gguf", variant.parts[0].path, variant.parts)


class _Index(Struct):
    weight_map: dict[str, str]


def _safetensors(name: HubName, paths: dict[str, RepoFile], read: Callable[[str], bytes]) -> Chosen:
    wanted = [path for path in paths if path in _BESIDE or path.endswith(".tiktoken")]
    if _INDEX in paths:
        try:
            index = msgspec.json.decode(read(_INDEX), type=_Index)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(f"{name}: {_INDEX} is not an index ({error})") from error
        wanted += [_INDEX, *sorted(set(index.weight_map.values()))]
    else:
        wanted.append(_WEIGHTS)
    missing = [path for path in wanted if path not in paths]
    if missing:
        raise ConfigError(f"{name}: the index names {missing[0]}, which is not there")
    return Chosen("hf", "config.json", [paths[path] for path in dict.fromkeys(wanted)])


def _nothing(paths: Iterable[str]) -> str:
    """Why there is no model in a repository with these files."""
    paths = list(paths)
    if "adapter_config.json" in paths:
        return "is an adapter (LoRA), which this server does not load; name the model it is for"
    if any(path.endswith(_PICKLED) for path in paths):
        return "has pickled weights only; this server reads safetensors and GGUF"
    if any(path.endswith(".safetensors") for path in paths):
        return "has safetensors, but no config.json with model.safetensors or its index"
    return "has no safetensors and no GGUF file"
