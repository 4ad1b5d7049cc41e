"""What a first hour gets wrong: each ends before any part of a server starts, with one line that
says what happened and what to do."""

import errno
import json
import logging
import os
import re
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from srt.commands.command import main
from srt.ring.child import Child
from tests.scheduler_proc.kernels.ops import load_or_skip

# Words of `srt serve`, with FOLDER for one of files that are wrong, and what the line has.
MISTAKES = [
    ("--prot 80", "--prot; did you mean --port?"),
    ("--max-num-seqs 8", "--max-num-seqs; it is called --max-running-requests here"),
    ("--enable-prefix-caching", "--enable-prefix-caching; not needed: it is always on"),
    ("--revision v1", "--revision; write it into the name of the model: org/name@REVISION"),
    ("--lora-modules a=b", "--lora-modules; there is none: adapters are not supported"),
    ("--dtype half", "argument --dtype: invalid choice: 'half'"),
    ("smollm", "model 'smollm' not found (did you mean 'smollm2'?): pass"),
    ("mistral", "model 'mistral' not found: pass 'smollm2', a .gguf file"),
    ("FOLDER/empty", "/empty' is a directory without a config.json"),
    ("FOLDER/gguf", r"/gguf' is a directory of GGUF files: name one of them, such as /"),
    ("FOLDER/file.bin", "/file.bin' is no model: a file must be a GGUF file"),
    ("FOLDER/gguf/four.gguf", "/four.gguf: not a GGUF file: it begins with b'abcd', not b'GGUF'"),
    ("FOLDER/cut.gguf", "/cut.gguf: not a readable GGUF file (unpack_from requires"),
    ("FOLDER/mute.gguf", "/mute.gguf has no tokenizer (tokenizer.ggml.tokens): --tokenizer names"),
    ("FOLDER/mute", "/mute has no tokenizer (tokenizer.json, tokenizer.model or *.tiktoken): --t"),
    (
        "org/name --tokenizer FOLDER/none",
        "/none' does not exist: it takes a directory, or a tokenizer.json",
    ),
    ("FOLDER/mute --tokenizer FOLDER/mute.gguf", "a GGUF file's tokenizer serves GGUF models only"),
    (
        "--max-model-len 9000",
        "9000 is above the context of this model, 8192 tokens",
    ),
    ("--max-total-tokens 549755813888", "GiB, which the system refuses ("),
    (
        "--port 0 --ring-dir /proc/ring",
        "/proc/ring cannot be made: No such file or directory; choose",
    ),
    ("--port 0 --ring-dir /tmp/" + "\u00e9" * 50, "too long for a Unix socket's address"),
    ("--port 0 --ring-dir FOLDER", "exists already: is a server running there?"),
    ("FOLDER/bare", "/bare has no weights (model.safetensors): no other kind of weights is read"),
    ("FOLDER/lfs", "/model.safetensors: not a safetensors file; this is a pointer of Git LFS"),
    ("FOLDER/lfs.gguf", "b'vers', not b'GGUF'; this is a pointer of Git LFS: `git lfs pull`"),
    ("--host 192.0.2.1", "cannot listen on 192.0.2.1:30000: Cannot assign requested address; --ho"),
    ("--api-key-file FOLDER/none", "--api-key-file: cannot read"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of files that are wrong. No part of a server can be started."""

    def start(*_: object) -> None:
        raise AssertionError("a part was started")

    monkeypatch.setattr(Child, "start", start)
    # It would take pytest's handlers from the log.
    monkeypatch.setattr("srt.launch.set_up_logging", lambda *_: None)
    for name in ("empty", "gguf", "mute", "bare", "lfs"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.bin").write_bytes(b"abcd")
    (tmp_path / "gguf" / "four.gguf").write_bytes(b"abcd")
    (tmp_path / "mute.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + struct.pack("<IQ", 3, 1))
    for name in ("mute", "bare", "lfs"):
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for name in ("bare", "lfs"):
        (tmp_path / name / "tokenizer.json").touch()
    for path in (tmp_path / "lfs.gguf", tmp_path / "lfs" / "model.safetensors"):
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
    return tmp_path


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    log, handler = logging.getLogger(), logging.StreamHandler()  # to standard error as it is now
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        status: object = main(["serve", *words])
    except SystemExit as end:
        status = end.code
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert status == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert not shown.out
    return line


@pytest.mark.parametrize(("words", "text"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_one_line_says_what_is_wrong(
    words: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said(words.replace("FOLDER", str(folder)).split(), capsys)
    assert re.match("srt( serve: error)?: ", line) and text in line


def test_a_folder_that_may_not_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if "closed" in str(path) and not str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **options)

    (folder / "closed").mkdir()
    monkeypatch.setattr(os, "stat", stat)
    for words in ([], [str(folder / "mute"), "--tokenizer"]):
        assert "Permission denied" in said([*words, str(folder / "closed")], capsys)


def test_a_port_that_is_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = said(["--port", str(port)], capsys)
    assert line.endswith("end what listens there, or take another: --port 0 finds a free one")


def test_a_level_that_the_processor_lacks(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_or_skip()
    monkeypatch.setenv("SRT_ISA", "abacus")
    line = said([], capsys)
    assert "SRT_ISA: instruction-set level 'abacus' is not one that this CPU and build" in line
    assert line.endswith("portable")


def test_a_part_of_a_model_that_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = folder / "m-00001-of-00002.gguf"
    (folder / "mute.gguf").rename(first)
    assert said([str(first)], capsys).endswith("m-00002-of-00002.gguf: does not exist")
