"""What children make: artefacts, with a completion where closing needs one."""

from pathlib import Path

import pytest

from scheduler_proc.grammar.artefact import Artefact, read_artefact
from scheduler_proc.grammar.cache import ArtefactFolder
from scheduler_proc.grammar.closing.witness import WitnessFinder
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.store import GrammarStore, Shared, load_compiled
from scheduler_proc.grammar.worker.maker import ArtefactMaker
from srt.wire.constraint import Constraint
from tests.scheduler_proc.grammar.automata import BYTES

OPEN = Constraint("json_schema", '{"type": "object", "required": ["a"]}')


def made(tmp_path: Path, constraint: Constraint) -> Artefact:
    folder = ArtefactFolder(tmp_path / "made", 2**20)
    maker = ArtefactMaker(GrammarCompiler(BYTES), BYTES, folder, None)
    assert maker.do(maker.job("key", constraint)).status == "ok"
    return read_artefact(tmp_path / "made" / "key")


@pytest.mark.parametrize("after", ["", "</think>"])
async def test_a_completion_for_those_that_show_no_states(tmp_path: Path, after: str) -> None:
    artefact = made(tmp_path, Constraint(OPEN.kind, OPEN.source, after=after))
    assert artefact.completion is not None
    text = b"".join(BYTES.token_bytes[i] for i in artefact.completion)
    assert text.startswith(after.encode() + b'{"a":')
    grammar = load_compiled(artefact, BYTES).start()
    grammar.accept(artefact.completion)
    assert grammar.is_accepting()
    store = GrammarStore(lambda: Shared(BYTES), tmp_path / "made")
    compiled = await store.load("key")
    closing = store.closing(compiled, compiled.start(), len(artefact.completion))
    (other,) = {artefact.completion[-1], BYTES.token_bytes.index(b" ")} - {artefact.completion[-1]}
    closing.accept(artefact.completion[:-1])
    assert closing.instead_of(other) == artefact.completion[-1:]
    store.close()


def test_none_for_automata_and_where_the_search_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made(tmp_path, Constraint("regex", "a+")).completion is None

    def fail(*_: object) -> None:
        raise BaseException("a panic")

    monkeypatch.setattr(WitnessFinder, "find_ahead", fail)
    assert made(tmp_path / "again", OPEN).completion is None
