"""Model files damaged by accident or malice: each is loaded, or refused in one line that names it.

Every mutant is read in a forked child with a limit of CPU time, as a server's processes read it:
the vocabulary, both tokenizers, the model's configuration, the chat template.
"""

import json
import os
import random
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler_proc.models.gguf_config import config_from_gguf
from scheduler_proc.models.json_config import config_from_json
from srt.files.gguf import GGUFFile
from srt.files.model_files import ModelFiles
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import load_vocab
from srt.ring.forked import detach, limit_memory
from srt.wire.errors import ConfigError, RequestError
from srt.wire.messages import ChatMessage
from tests.model_files import byte_level_tokenizer, save_directory, spm_tokenizer, write_gguf
from tests.running.profiles import seeds
from tests.scheduler_proc.models.test_family_configs import HUB
from tests.spm_files import spm_model, write_spm_gguf
from tests.srt.files.test_tiktoken import file_of, learned, write_directory
from tokenizer_proc.prompt.chat_template import ChatTemplate

CPU_S = 20.0
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{% if loop.last %}{{ eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '%s' % (tools | length) }}{% endif %}"
)
ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**400, 0.5, -1e308, "", "x", "\ud800", [], [[]],
    {}, {"a": 1}, [1, "a"], ["a", "b"], "(a+)+$", "(" * 3000,
]  # fmt: skip


def in_child(work: Callable[[], object], path: Path, tmp_path: Path) -> None:
    """Fails with the child's traceback, or if a signal or a limit ends it."""
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        status = 1
        try:
            detach(parent, log, log)
            limit_memory(4 * 2**30)
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            signal.alarm(120)
            work()
            status = 0
        except ConfigError as error:
            lines = str(error).splitlines()
            is_named = path.name in lines[0] or "config.json" in lines[0]
            status = 0 if len(lines) == 1 and is_named else 2
            os.write(log, f"not one line that names the file: {error}".encode())
        except BaseException:
            os.write(log, traceback.format_exc().encode())
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    told = os.pread(log, 20_000, 0).decode(errors="replace")
    os.close(log)
    assert status == 0, f"status {status}: {told}"


def load(files: ModelFiles) -> None:
    """Load and use everything that a server's processes read for texts."""
    vocab = load_vocab(files)
    load_tokenizer(files).encode("the cat sat")
    load_plain_tokenizer(files).split("the cat")
    vocab.decode(range(min(10, vocab.vocab_size)))
    ChatTemplate.from_vocab(vocab)


# ---- mutants ---------------------------------------------------------------------------------


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        # Most changes are in the head of a file, where its structure is.
        at = rng.randrange(min(len(changed), rng.choice((64, 2000, len(changed)))))
        how = rng.randrange(4)
        if how == 0:
            changed[at] = rng.randrange(256)
        elif how == 1:
            changed[at : at + 8] = rng.choice((2**63, 2**32, 2**20, 0)).to_bytes(8, "little")
        elif how == 2:
            del changed[at : at + rng.choice((1, 8, 100))]
        else:
            del changed[at + 1 :]
        if not changed:
            break
    return bytes(changed)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value; at most 40 keys of each container."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys[:40]]
    for key in keys[:40]:
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


def mutated_json(text: str, rng: random.Random) -> bytes:
    if rng.randrange(5) == 0:
        return mutated_bytes(text.encode(), rng)
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 3))):
        found = places(value)
        if not found:
            break
        container, key = rng.choice(found)
        if rng.randrange(3) == 0:
            del container[key]
        elif rng.randrange(4) == 0 and isinstance(container, dict):
            container[rng.choice(list(container))] = container[key]
        else:
            container[key] = rng.choice(ODD)
    return json.dumps(value).encode("utf-8", "surrogatepass")


def mutated_template(rng: random.Random) -> str:
    source = TEMPLATE
    for _ in range(rng.choice((1, 2, 5))):
        at, end = sorted(rng.randrange(len(source) + 1) for _ in range(2))
        bits = ("{{", "}}", "{%", "%}", "(", "messages", "|tojson", "'", "**9", "%", " for ", "[0]")
        how = rng.randrange(3)
        new = (source[at:end], "", rng.choice(bits))[how]
        source = source[:at] + new + source[at if how == 2 else min(end, at + 9) :] or "x"
    return source


# ---- the kinds of files --------------------------------------------------------------------------


def try_gguf(tmp_path: Path, rng: random.Random) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path) if rng.randrange(2) else write_spm_gguf(path)
    path.write_bytes(mutated_bytes(path.read_bytes(), rng))
    files = ModelFiles("m", "gguf", path)

    def work() -> None:
        load(files)
        config_from_gguf(GGUFFile(path))

    in_child(work, path, tmp_path)


def try_tokenizer(tmp_path: Path, rng: random.Random) -> None:
    made = byte_level_tokenizer() if rng.randrange(2) else spm_tokenizer()
    files = save_directory(tmp_path, made)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(mutated_json(path.read_text(), rng))
    in_child(lambda: load(files), tmp_path, tmp_path)


def try_spm(tmp_path: Path, rng: random.Random) -> None:
    (tmp_path / "tokenizer.model").write_bytes(mutated_bytes(spm_model(), rng))
    sizes = {"max_position_embeddings": 64, "vocab_size": rng.choice((500, 1000))}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    in_child(lambda: load(ModelFiles("m", "hf", tmp_path)), tmp_path, tmp_path)


def try_tiktoken(tmp_path: Path, rng: random.Random) -> None:
    files = write_directory(tmp_path, file_of(learned()), rows=rng.choice((500, 1600)))
    names = ("qwen.tiktoken", "tokenizer_config.json")
    path = tmp_path / rng.choice(names)
    is_json = path.suffix == ".json"
    content = path.read_bytes()
    changed = mutated_json(content.decode(), rng) if is_json else mutated_bytes(content, rng)
    path.write_bytes(changed)
    in_child(lambda: load(files), tmp_path, tmp_path)


def try_config(tmp_path: Path, rng: random.Random) -> None:
    hub = rng.choice(sorted(HUB))
    files = save_directory(tmp_path, byte_level_tokenizer())
    path = tmp_path / "config.json"
    path.write_bytes(mutated_json(json.dumps(HUB[hub]), rng))
    in_child(lambda: load(files), tmp_path, tmp_path)
    in_child(lambda: config_from_json(path), path, tmp_path)


def try_template(tmp_path: Path, rng: random.Random) -> None:
    source = mutated_template(rng)

    def work() -> None:
        template = ChatTemplate(source, eos_token="<eos>")
        try:
            template.render([ChatMessage("user", "hi"), ChatMessage("assistant", "ho")])
        except RequestError as error:
            assert len(str(error).splitlines()) == 1, error

    in_child(work, tmp_path, tmp_path)


TRIALS = (try_gguf, try_tokenizer, try_spm, try_tiktoken, try_config, try_template)
KINDS = {f.__name__: f for f in TRIALS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", seeds(1))
def test_mutants(kind: str, part: int, tmp_path: Path) -> None:
    failed = {}
    for seed in range(6 * part, 6 * part + 6):
        directory = tmp_path / str(seed)
        directory.mkdir()
        try:
            KINDS[kind](directory, random.Random(f"{kind} {seed}"))
        except AssertionError as error:
            failed[seed] = str(error)[-1500:]
    assert not failed, "\n".join(f"seed {seed}: {error}" for seed, error in failed.items())


# ---- particular mutants ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "config.json", "tokenizer_config.json", "chat_template.jinja"]
)
def test_a_pipe_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    files = save_directory(tmp_path, byte_level_tokenizer())
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name}: is not a regular file"):
        load_vocab(files)
    with pytest.raises(ConfigError):
        config_from_json(tmp_path / "config.json")


def test_a_gguf_file_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match="is not a regular file"):
        GGUFFile(tmp_path / "m.gguf")


@pytest.mark.parametrize("eps", ["NaN", "Infinity", "-1", "0", "1e400"])
def test_the_epsilon_of_norms(eps: str, tmp_path: Path) -> None:
    config = json.dumps(HUB["Llama-3.1-8B"]).replace("1e-05", eps)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=r"config.json: "):
        config_from_json(tmp_path / "config.json")
