"""Tries a model directory's tokenizer once, in a child with limits, before any part loads it.

What a tokenizer.json says is carried out by a library, in the processes themselves: normalizers may
make a text a million times as long, patterns may look at it for ever. Requests' texts are read in
children, but every part encodes a few characters at its start.
"""

import os
from functools import partial

from srt.files.hf import MAX_TOKENIZER_BYTES, tokenizer_path
from srt.files.model_files import ModelFiles, require_file
from srt.ring.forked import result_in_time
from srt.wire.errors import ConfigError

# CPU time and memory, and more of both for a large file: one of 24 MiB takes 3 s and 0.5 GiB.
CPU_S, NUM_BYTES = 4.0, 512 * 2**20
CPU_S_PER_BYTE, BYTES_PER_BYTE = 0.5 / 2**20, 24
# Words, code, many scripts, and long runs of one character, which patterns may take long for.
_LINES = (
    "A text like those of requests: 12 words, 3.5 % of them short; it's naïve, isn't it?\n",
    'def f(x: int = 0x1F) -> str:\n\t\treturn f"{x:>8}" # "quoted" \\n <b>&amp;</b>\r\n',
    "Größe, ЖЗИ, αβγ, עברית, العربية, हिन्दी, ไทย, 汉字かな, 한국어, 🙂, e\u0301, \u00a0\u3000\n",
    *(character * 64 + "!\n" for character in "aA1 .-=_\n"),
)
_TEXT = "".join(_LINES)
_MAX_GROWTH = 32  # of a text by its normalizer; Unicode's own forms have up to 18 for one


def try_tokenizer(files: ModelFiles) -> None:
    """Raise ConfigError, which names the file, unless the tokenizer of a directory loads and
    encodes a text within the limits. GGUF files have a tokenizer that this project makes."""
    if files.kind != "hf":
        return
    path = tokenizer_path(files.path)
    require_file(path, MAX_TOKENIZER_BYTES)
    size = path.stat().st_size
    cpu_s, num_bytes = CPU_S + CPU_S_PER_BYTE * size, NUM_BYTES + BYTES_PER_BYTE * size
    result = result_in_time(partial(_tried, files), cpu_s, num_bytes)
    if result is None:
        raise ConfigError(
            f"{path}: to load this tokenizer and encode {len(_TEXT)} characters takes more than "
            f"{cpu_s:.0f} s of CPU time or {num_bytes / 2**20:.0f} MiB"
        )
    if result:
        raise ConfigError(result.decode(errors="replace"))


def _tried(files: ModelFiles) -> bytes:
    """Why a tokenizer is refused; nothing if it is not. The launcher does without the library."""
    from srt.files.tokenizer import load_tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a thread for each core takes memory
    try:
        tokenizer = load_tokenizer(files)
        length = tokenizer.normalized_length(_TEXT)
        if length > _MAX_GROWTH * len(_TEXT):
            path = tokenizer_path(files.path)
            raise ConfigError(f"{path}: of {len(_TEXT)} characters its normalizer makes {length}")
        tokenizer.encode(_TEXT)
    except ConfigError as error:
        return str(error).encode(errors="replace")
    except RuntimeError as error:
        path = tokenizer_path(files.path)
        return f"{path}: fails at a text ({error})".encode(errors="replace")
    return b""
