"""What the launcher tries before any part starts: whether a model's files are there, whether its
tokenizer loads within limits and its number of positions can be one, whether the kernels have the
level that is asked for.

A directory's tokenizer is tried once, in a child: what a tokenizer.json says is carried out by a
library, in the processes themselves: normalizers may make a text a million times as long, patterns
may look at it for ever. Requests' texts are read in children, but every part encodes a few
characters at its start. What has passed is noted among the user's caches and not tried again until
a file changes: the trial of a large vocabulary takes some seconds.
"""

import hashlib
import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

from srt.args import ServerArgs, torch_option
from srt.files.gguf import GGUFFile, open_gguf
from srt.files.model_files import ModelFiles, pointer_advice, require_file
from srt.files.text_config import gguf_text
from srt.machine import cache_folder
from srt.ring.forked import result_in_time
from srt.wire.errors import ConfigError

# CPU time and memory, and more of both for a large file: one of 32 MiB takes 4 s and 0.8 GiB.
CPU_S, NUM_BYTES = 4.0, 512 * 2**20
CPU_S_PER_BYTE, BYTES_PER_BYTE = 0.5 / 2**20, 24
# So much larger is the tokenizer.json, with its merges, that is made of a file of another kind.
_JSON_PER_BYTE = 8
# Libraries start a thread for each core as they are loaded, and each takes room of the memory.
_ONE_THREAD = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
# Words, code, many scripts, and long runs of one character, which patterns may take long for.
_LINES = (
    "A text like those of requests: 12 words, 3.5 % of them short; it's naïve, isn't it?\n",
    'def f(x: int = 0x1F) -> str:\n\t\treturn f"{x:>8}" # "quoted" \\n <b>&amp;</b>\r\n',
    "Größe, ЖЗИ, αβγ, עברית, العربية, हिन्दी, ไทย, 汉字かな, 한국어, 🙂, e\u0301, \u00a0\u3000\n",
    *(character * 64 + "!\n" for character in "aA1 .-=_\n"),
)
_TEXT = "".join(_LINES)
_NOTE_LIFE_S = 30 * 86400.0
_MAX_GROWTH = 32  # of a text by its normalizer; Unicode's own forms have up to 18 for one

_LEVEL_COMMAND = ("-m", "scheduler_proc.kernels.level")
_LEVEL_IS_WRONG = 2  # its exit status, where SRT_ISA asks for what there is not


def check_level(args: ServerArgs) -> None:
    """Raise ConfigError if SRT_ISA asks for a level of the native kernels that this CPU or build
    lacks, and they are to run. Where there is no library, the scheduler says what runs instead."""
    if not os.environ.get("SRT_ISA") or args.executor == "torch" or torch_option(args):
        return
    done = subprocess.run(
        [sys.executable, *_LEVEL_COMMAND], capture_output=True, text=True, check=False
    )
    if done.returncode == _LEVEL_IS_WRONG:
        raise ConfigError(done.stderr.strip())


def check_files(files: ModelFiles) -> None:
    """Raise ConfigError, which names the file, unless a GGUF model's files are there and whole, and
    the model has a tokenizer."""
    model = open_gguf(files.path) if files.kind == "gguf" else None
    place = files.text_path
    if files.text_kind == "gguf":
        text = model if files.tokenizer is None else GGUFFile(place)
        is_there = text is not None and "tokenizer.ggml.tokens" in text.metadata
        kinds = "tokenizer.ggml.tokens"
    else:
        from srt.files.hf import tokenizer_path

        try:
            is_there = tokenizer_path(place).exists()
        except OSError as error:  # of a folder that this user may not read
            raise ConfigError(f"{place}: cannot be read ({error.strerror})") from error
        kinds = "tokenizer.json, tokenizer.model or *.tiktoken"
    if not is_there:
        advice = "--tokenizer names a directory or file that has one"
        raise ConfigError(f"{place} has no tokenizer ({kinds}): {advice}")


def check_weights(files: ModelFiles) -> None:
    """Raise ConfigError, which names the file, if a directory has no safetensors, or one that is
    shorter than its own header says."""
    if files.kind != "hf":
        return
    paths = sorted(files.path.glob("model*.safetensors"))
    if not paths and not (files.path / "model.safetensors.index.json").exists():
        what = "no other kind of weights is read"
        raise ConfigError(f"{files.path} has no weights (model.safetensors): {what}")
    for path in paths:
        require_file(path, None)
        try:
            with path.open("rb") as file:
                head = file.read(64)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        if 8 + int.from_bytes(head[:8], "little") > path.stat().st_size:
            raise ConfigError(f"{path}: not a safetensors file{pointer_advice(head)}")


def try_tokenizer(files: ModelFiles) -> None:
    """Raise ConfigError, which names the file, unless the tokenizer of a directory loads and
    encodes a text within the limits. GGUF files have a tokenizer that this project makes."""
    if files.text_kind != "hf":
        return
    from srt.files.hf import MAX_TOKENIZER_BYTES, tokenizer_path

    path = tokenizer_path(files.text_path)
    if files.kind == "gguf":
        gguf_text(files.path)  # the child then need not map the model
    require_file(path, MAX_TOKENIZER_BYTES)
    with suppress(OSError):
        if _note(files).exists():
            return
    size = path.stat().st_size
    if path.suffix != ".json":
        size = min(_JSON_PER_BYTE * size, MAX_TOKENIZER_BYTES)
    cpu_s, num_bytes = CPU_S + CPU_S_PER_BYTE * size, NUM_BYTES + BYTES_PER_BYTE * size
    result = result_in_time(partial(_tried, files), cpu_s, num_bytes)
    if result is None:
        raise ConfigError(
            f"{path}: to load this tokenizer and encode {len(_TEXT)} characters takes more than "
            f"{cpu_s:.0f} s of CPU time or {num_bytes / 2**20:.0f} MiB, or crashes"
        )
    if result:
        raise ConfigError(result.decode(errors="replace"))
    with suppress(OSError):  # no folder for caches, or no room
        _keep(_note(files))


def _note(files: ModelFiles) -> Path:
    """The file that is there if a tokenizer has passed: with these files as they are now, and with
    this library. Raises OSError."""
    known = hashlib.sha256(f"1 {version('tokenizers')}".encode())
    for place in dict.fromkeys((files.path, files.text_path)):
        known.update(f" {place.resolve()}\n".encode())
        beside = place.with_name("tokenizer_config.json")
        alone = [place, *([beside] if beside.exists() else [])]
        for path in sorted(place.iterdir()) if place.is_dir() else alone:
            found = path.stat()
            facts = f"{path.name} {found.st_size} {found.st_mtime_ns} {found.st_ino}\n"
            known.update(facts.encode())
    return cache_folder() / "tokenizers" / known.hexdigest()


def _keep(note: Path) -> None:
    note.parent.mkdir(0o700, parents=True, exist_ok=True)
    for other in note.parent.iterdir():
        if time.time() - other.stat().st_mtime > _NOTE_LIFE_S:
            other.unlink(missing_ok=True)
    note.touch(0o600)


def _tried(files: ModelFiles) -> bytes:
    """Why a tokenizer is refused; nothing if it is not. The launcher does without the library."""
    os.environ |= _ONE_THREAD
    from srt.files.hf import HFFiles, tokenizer_path
    from srt.files.tokenizer import load_tokenizer
    from srt.files.vocab import positions_of

    path = tokenizer_path(files.text_path)
    try:
        positions_of(files.path, HFFiles(files.path, files.text_path))
        tokenizer = load_tokenizer(files)
        length = tokenizer.normalized_length(_TEXT)
        if length > _MAX_GROWTH * len(_TEXT):
            raise ConfigError(f"{path}: of {len(_TEXT)} characters its normalizer makes {length}")
        tokenizer.encode(_TEXT)
    except ConfigError as error:
        return str(error).encode(errors="replace")
    except MemoryError:  # the limit
        raise
    except Exception as error:  # the library raises bare Exception for much that fails
        return f"{path}: fails at a text ({error})".encode(errors="replace")
    return b""
