"""`srt models`: the models that lie on this machine, whether they fit, and how fast they are."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import Struct

from srt.args import ServerArgs
from srt.files.model_files import DEFAULT_MODEL, ModelFiles, gguf_parts, resolve_model
from srt.files.sizes import model_sizes
from srt.hub.cache import Snapshot, snapshot, snapshots
from srt.hub.link import cached_link
from srt.hub.names import HF, HubName, Link, parse_name, shown_model
from srt.hub.offer import choose, variants
from srt.machine import cache_folder, memory_available
from srt.options.arguments import Parser
from srt.progress import shown
from srt.sizing import plan_for
from srt.wire.errors import ConfigError

# Two excerpts of a large model from a slow disk.
_MEASURED_S = 300.0


class Model(NamedTuple):
    """A model that lies here: what to write to have it, and where its files are."""

    name: str
    files: ModelFiles


class Row(Struct):
    """What there is to say of a model. Bytes of the weights, `active_bytes` those that one token
    passes through; `is_mixture` says that it leaves out experts; `fits` is "" or why it does not;
    tokens per second of one stream, None where they were not measured; `note` says why, if that is
    not by wish."""

    name: str
    num_bytes: int
    context_len: int
    pool_tokens: int
    active_bytes: int = 0
    is_mixture: bool = False
    fits: str = ""
    tokens_per_s: float | None = None
    level: str = ""
    note: str = ""


class _Measured(Struct):
    level: str = ""
    seconds: float = 0.0
    error: str = ""


def models_here() -> Iterator[Model]:
    """The embedded model, then those of the hub's cache, then files from other addresses."""
    with suppress(ConfigError):  # it is not installed
        yield Model(DEFAULT_MODEL, resolve_model(DEFAULT_MODEL))
    for each in snapshots():
        yield from _of_snapshot(each)
    try:
        links = sorted((cache_folder() / "models").glob("*/*/*.gguf"))
    except OSError:
        return
    for path in links:
        with suppress(ConfigError):  # a part is missing, or it is a broken link
            files = resolve_model(str(path))
            if files.path == path:  # the first of several parts
                yield Model(str(path), files)


def _of_snapshot(snapshot: Snapshot) -> Iterator[Model]:
    """Those of its models that are complete."""
    name = HubName(snapshot.repo, "" if snapshot.is_default else snapshot.commit)
    found = variants(snapshot.files)
    for variant in found:
        files = resolve_model(str(snapshot.folder / variant.parts[0].path))
        if all(part.exists() for part in gguf_parts(files.path)):
            is_only = sum(other.label == variant.label for other in found) == 1
            own = name._replace(variant=variant.label)
            if not is_only:
                own = name._replace(file=variant.parts[0].path)
            yield Model(str(own) if is_only else f"{HF}{own}", files)
    plain = [file for file in snapshot.files if not file.path.endswith(".gguf")]
    with suppress(ConfigError, OSError):  # it has no safetensors, or not all of them
        choose(name, plain, lambda path: (snapshot.folder / path).read_bytes(), 0)
        yield Model(str(name), resolve_model(str(snapshot.folder)))


def row_of(model: Model, available: int) -> Row:
    """What its files say, and what a server would take of `available` bytes of memory. Raises
    ConfigError if they say nothing."""
    sizes = model_sizes(model.files)
    row = Row(model.name, sizes.weight_bytes, sizes.context_len, 0, sizes.active_bytes)
    row.is_mixture = sizes.expert_bytes > 0
    try:
        row.pool_tokens = plan_for(ServerArgs(), sizes, available).pool_tokens
    except ConfigError as error:
        row.fits = str(error)
    return row


def measure(row: Row, files: ModelFiles) -> None:
    """Fill in what a run of it, or of a part of it, says. In a process of its own: the kernels may
    not run here."""
    command = [sys.executable, "-m", "scheduler_proc.speed", str(files.path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_MEASURED_S, check=False
        )
        found = msgspec.json.decode(done.stdout, type=_Measured)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        found = _Measured(error=f"not measured: {type(error).__name__}")
    row.note, row.level = found.error, found.level
    if found.seconds > 0:
        row.tokens_per_s = 1 / found.seconds


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = Parser(
        prog="srt models",
        description="List the models that lie on this machine, whether they fit into its memory, "
        "and how many tokens a second one stream would have, which is measured on some of their "
        "layers. `srt serve NAME` serves one.",
    )
    parser.add_argument("MODEL", nargs="*", help="only these: names as of `srt serve`")
    parser.add_argument("--no-speed", action="store_true", help="do not measure")
    parser.add_argument("--json", action="store_true", help="write JSON")
    return parser


def _chosen(names: Sequence[str]) -> Iterator[Model]:
    here = list(models_here())
    if not names:
        yield from here
        return
    for name in names:
        parsed = parse_name(name)
        if isinstance(parsed, Link):
            if (path := cached_link(parsed)) is None:
                raise ConfigError(f"nothing was brought by the very address {shown_model(name)}")
            yield Model(str(path), resolve_model(str(path)))
            continue
        if parsed is None:
            known = [model for model in here if model.name == name]
            yield from known or [Model(name, resolve_model(name))]
        elif known := [*_of_repository(parsed)]:
            yield from known
        else:
            raise ConfigError(f"{parsed} is not on this machine: `srt serve {parsed}` brings it")


def _of_repository(wanted: HubName) -> Iterator[Model]:
    """Those that lie here and are meant; of all revisions if `wanted` has none and the default
    branch is not here."""
    found = [each for each in snapshots() if each.repo.lower() == wanted.repo.lower()]
    revision = snapshot(found[0].repo, wanted.revision) if found else None
    if wanted.revision or revision is not None:
        found = [each for each in found if each == revision]
    for each in found:
        for model in _of_snapshot(each):
            name = parse_name(f"{HF}{model.name.removeprefix(HF)}")  # no folder of that name
            assert isinstance(name, HubName)
            is_label = wanted.variant.lower() in ("", name.variant.lower())
            if is_label and wanted.file in ("", name.file):
                yield model


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    """The command; returns the exit status."""
    options = make_parser().parse_args(argv)
    available, rows = memory_available(), list[Row]()
    try:
        chosen = list(_chosen(options.MODEL))
    except ConfigError as error:
        print(f"srt models: {error}", file=sys.stderr)
        return 1
    width = max([len(model.name) for model in chosen], default=0)
    for model in chosen:
        try:
            row = row_of(model, available)
        except ConfigError as error:
            row = Row(model.name, 0, 0, 0, note=str(error))
        if not (options.no_speed or row.fits or row.note):
            measure(row, model.files)
        rows.append(row)
        if not options.json:
            write(_line(row, width))
    if options.json:
        write(msgspec.json.encode(rows).decode())
    elif not rows:
        write("no models here: `srt serve org/name` brings one from the hub")
    else:
        write(f"memory: {shown(available)} available")
    return 0


def _line(row: Row, width: int) -> str:
    head = f"{row.name:{width}}  {shown(row.num_bytes):>9}"
    if row.fits:
        return f"{head}  does not fit: {row.fits}"
    if row.note:
        return f"{head}  {row.note}"
    speed = ""
    if row.tokens_per_s is not None:
        speed = f"  {row.tokens_per_s:6.1f} tokens/s ({row.level})"
    active = f", {shown(row.active_bytes)} of it active" if row.is_mixture else ""
    return f"{head}{active}  context {row.context_len}, pool {row.pool_tokens} tokens{speed}"
