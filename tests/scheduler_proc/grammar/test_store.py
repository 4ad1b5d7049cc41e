"""The scheduler's store reads each grammar once, keeps within its bound, and survives bad files."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler_proc.grammar.artefact import Artefact, write_artefact
from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.store import GrammarStore, Shared, load_compiled
from scheduler_proc.grammar.vocabulary import TokenVocabulary


class Compiled:
    """The part of a CompiledGrammar that the store uses."""

    backend = "fake"
    narrows = True
    fewest_tokens = 1

    def __init__(self, key: str) -> None:
        self.key = key
        self.num_bytes = 100

    def start(self) -> Any:
        return None


class Bench:
    """A store over real files. Its loader notes each load, and waits while `gate` is closed."""

    def __init__(self, directory: Path, max_bytes: int = 350) -> None:
        self.directory = directory
        self.loads: list[str] = []
        self.vocabularies = 0
        self.gate = threading.Event()
        self.gate.set()
        self.store = GrammarStore(self._shared, directory, max_bytes, self._load)
        for key in "abcde":
            facts = {"key": key}
            write_artefact(directory / key, Artefact("fake", facts, {"a": np.arange(3)}))

    def _shared(self) -> Shared:
        self.vocabularies += 1
        return Shared(TokenVocabulary.from_tokens([b"a", b"b", b""], [2], [2]))

    def _load(self, artefact: Artefact, vocabulary: TokenVocabulary) -> Any:
        assert self.gate.wait(10)
        assert vocabulary.vocab_size == 3
        self.loads.append(artefact.facts["key"])
        if artefact.facts["key"] == "e":
            raise GrammarError("not for this vocabulary")
        return Compiled(artefact.facts["key"])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_loaded_once_then_kept(bench: Bench) -> None:
    assert bench.store.get("a") is None
    first = await bench.store.load("a")
    assert bench.store.get("a") is first
    assert await bench.store.load("a") is first
    assert bench.loads == ["a"] and bench.vocabularies == 1


async def test_many_who_ask_at_once_share_one_load(bench: Bench) -> None:
    bench.gate.clear()
    asking = [asyncio.ensure_future(bench.store.load("a")) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()  # the others still get it
    bench.gate.set()
    loaded = await asyncio.gather(*asking[1:])
    assert len(set(map(id, loaded))) == 1 and bench.loads == ["a"]


async def test_the_least_recently_used_goes_first(bench: Bench) -> None:
    for key in "abc":
        await bench.store.load(key)
    bench.store.get("a")
    await bench.store.load("d")
    assert [bench.store.get(key) is not None for key in "abcd"] == [True, False, True, True]
    await bench.store.load("b")
    assert bench.loads == ["a", "b", "c", "d", "b"] and len(bench.store) == 3


async def test_grammars_that_grow_push_others_out(bench: Bench) -> None:
    for key in "ab":
        await bench.store.load(key)
    grown: Any = bench.store.get("b")
    grown.num_bytes = 1000
    await bench.store.load("c")
    assert len(bench.store) == 1 and bench.store.get("c") is not None


async def test_a_bad_file_is_an_error_and_goes(bench: Bench) -> None:
    (bench.directory / "a").write_bytes(b"damaged")
    for key in ("a", "e", "missing"):
        with pytest.raises(GrammarError):
            await bench.store.load(key)
        assert not (bench.directory / key).exists()
    await bench.store.load("b")
    assert len(bench.store) == 1


async def test_failing_together(bench: Bench) -> None:
    (bench.directory / "a").unlink()
    results = await asyncio.gather(
        *(bench.store.load("a") for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, GrammarError) for result in results)


async def test_a_closed_store_loads_nothing(bench: Bench) -> None:
    bench.store.close()
    with pytest.raises(RuntimeError):
        await bench.store.load("a")


def test_an_unknown_back_end() -> None:
    vocabulary = TokenVocabulary.from_tokens([b"a"], [], [])
    with pytest.raises(GrammarError, match="unknown back end 'other'"):
        load_compiled(Artefact("other", {}, {}), vocabulary)
