"""`srt models`."""

from pathlib import Path

import msgspec
import pytest
from huggingface_hub import constants

from bench.mixtures.files import Shape, write_mixture
from srt.commands import command, models
from srt.files.model_files import resolve_model

COMMIT = "a" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and one of our own."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hub"


def add(cache: Path, repo: str, **links: Path) -> Path:
    """A snapshot in the cache, with links to files elsewhere; `_` in a name is a dot."""
    folder = cache / f"models--{repo.replace('/', '--')}" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    for name, target in links.items():
        (folder / name.replace("__", ".")).symlink_to(target)
    return folder


def listed(*words: str) -> list[str]:
    lines: list[str] = []
    assert models.main(words, lines.append) == 0
    return lines


def test_what_lies_here(cache: Path) -> None:
    gguf = resolve_model("smollm2").path
    add(cache, "org/name", **{"x-Q4_1__gguf": gguf, "config__json": gguf})
    link = cache.parent / "srt" / "models" / "ab" / "cd"
    link.mkdir(parents=True)
    (link / "y.gguf").symlink_to(gguf)
    lines = listed("--no-speed")
    assert [line.split()[0] for line in lines] == [
        *("smollm2", f"org/name@{COMMIT}:Q4_1", str(link / "y.gguf"), "memory:"),
    ]
    (cache / "models--org--name" / "refs").mkdir()
    (cache / "models--org--name" / "refs" / "main").write_text(COMMIT)
    assert listed("--no-speed")[1].startswith("org/name:Q4_1 ")
    assert all("context 8192, pool" in line for line in lines[:3])


def test_names_as_serve_takes_them(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = resolve_model("smollm2").path
    add(cache, "org/name", **{"x-Q4_1__gguf": gguf})
    (cache / "models--org--name" / "refs").mkdir()
    (cache / "models--org--name" / "refs" / "main").write_text(COMMIT)
    for name in ("org/name", "hf://org/name:q4_1", "hf.co/org/name", "ORG/name:Q4_1"):
        assert listed("--no-speed", name)[0].startswith("org/name:Q4_1 ")
    assert listed("--no-speed", f"org/name@{COMMIT}")[0].startswith("org/name:Q4_1 ")
    assert listed("--no-speed", "org/name@main")[0].startswith("org/name:Q4_1 ")
    (cache.parent / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(cache.parent)
    assert listed("--no-speed", "hf://org/name")[0].startswith("org/name:Q4_1 ")
    for name, message in (
        ("org/name@v2", "org/name@v2 is not on this machine"),
        ("org/name:Q8_0", "org/name:Q8_0 is not on this machine"),
        ("org/other", "org/other is not on this machine: `srt serve org/other` brings it"),
        ("https://example.com/a.gguf?sig=secret", "the very address https://example.com/a.gguf"),
    ):
        assert models.main([name]) == 1
        shown = capsys.readouterr().err
        assert message in shown and "secret" not in shown
    (cache / "models--org--name" / "refs" / "main").write_bytes(b"\xff\xfe\0")  # of a broken disk
    assert listed("--no-speed")[1].startswith(f"org/name@{COMMIT}:Q4_1 ")


def test_a_part_of_a_model_is_not_listed(cache: Path) -> None:
    gguf = resolve_model("smollm2").path
    folder = add(cache, "org/split", **{"x-Q8_0-00001-of-00002__gguf": gguf})
    assert len(listed("--no-speed")) == 2
    (folder / "x-Q8_0-00002-of-00002.gguf").symlink_to(gguf)
    found = msgspec.json.decode(listed("--no-speed", "--json")[0], type=list[models.Row])
    assert [row.name for row in found] == ["smollm2", f"org/split@{COMMIT}:Q8_0"]
    assert "is the first of" in found[1].note or "not part 2" in found[1].note


def test_no_models(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert listed() == ["no models here: `srt serve org/name` brings one from the hub"]


def test_one_that_does_not_fit(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "memory_available", lambda: 2**28)
    assert "does not fit: 0.25 GiB of memory are available" in listed("smollm2")[0]


@pytest.mark.full
def test_its_speed(cache: Path) -> None:
    """That it is right is shown by bench.model_speed."""
    row = msgspec.json.decode(listed("smollm2", "--json")[0], type=list[models.Row])[0]
    assert row.note or (row.tokens_per_s and row.tokens_per_s > 0 and row.level)


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["models", "nothing.gguf"]) == 1
    assert "'nothing.gguf' not found" in capsys.readouterr().err


def test_a_mixture_shows_what_a_token_reads(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "mixture.gguf"
    write_mixture(path, Shape("olmoe", 2, 256, 4, 4, 64, 16, 1, 1024), "Q8_0")
    assert " of it active  context 4096, pool" in listed("--no-speed", str(path))[0]
    dense, mixture = msgspec.json.decode(
        listed("--no-speed", "--json", "smollm2", str(path))[0], type=list[models.Row]
    )
    assert not dense.is_mixture and dense.active_bytes == dense.num_bytes
    assert mixture.is_mixture and 0 < mixture.active_bytes < mixture.num_bytes / 2
