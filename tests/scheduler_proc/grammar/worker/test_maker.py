"""What children make: artefacts, with a completion where closing needs one."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from scheduler_proc.grammar.artefact import Artefact, read_artefact
from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.cache import ArtefactFolder
from scheduler_proc.grammar.closing.witness import WitnessFinder
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.llg.blame import check_strings
from scheduler_proc.grammar.store import GrammarStore, Shared, load_compiled
from scheduler_proc.grammar.worker.maker import ArtefactMaker
from srt.wire.constraint import Constraint, ConstraintKind
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


def test_a_cache_on_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder, cache = (ArtefactFolder(tmp_path / name, 2**20) for name in ("made", "cache"))
    maker = ArtefactMaker(GrammarCompiler(BYTES), BYTES, folder, cache)
    job = maker.job("key", Constraint("regex", "a"))
    maker.do(job)
    for broken in ("os.link", "shutil.copyfileobj"):
        monkeypatch.setattr(broken, full)
    with pytest.raises(OSError, match=f"not kept in {tmp_path}/cache: No space left on device"):
        maker.finish(job)
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.undo()
    maker.finish(job)
    assert cache.path("key").stat().st_mode & 0o777 == 0o600
    folder.discard("key")
    monkeypatch.setattr("os.link", full)
    monkeypatch.setattr("shutil.copyfileobj", full)
    assert maker.do(job).status == "ok"  # compiled, as it cannot be taken from there


CRON = {"type": "string", "pattern": r"^(\S+\s+){4}\S+$", "maxLength": 100_000}
NAMES = {"patternProperties": {CRON["pattern"]: {}}, "propertyNames": {"maxLength": 100_000}}

SHORT = {**CRON, "maxLength": 64}


def format_of(content: dict[str, Any]) -> dict[str, Any]:
    tag = {"type": "tag", "begin": "<f>", "content": content, "end": "</f>"}
    return {"format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag]}}


def object_of(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name]}


@pytest.mark.parametrize(
    ("kind", "source", "places"),
    [
        ("json_schema", object_of("when", CRON), ["#/properties/when, pattern with maxLength"]),
        ("json_schema", {"type": "array", "items": CRON}, ["#/items, pattern with maxLength"]),
        ("json_schema", {"type": "object", **NAMES}, ["#, patternProperties"]),
        ("json_schema", {"type": "object", "propertyNames": CRON}, ["#, propertyNames: "]),
        ("json_schema", object_of("v", {"type": "string", "format": "email", "maxLength": 100_000}),
         ["#/properties/v, format with maxLength: "]),
        ("ebnf", "start: @x", ["unknown grammar @x"]),
        ("ebnf", 'start: %regex {"foo": 1}', ["%regex cannot be read: unknown field `foo`"]),
        ("structural_tag", format_of({"type": "json_schema", "json_schema": object_of("a", CRON)}),
         ["format.tags[0].content: ", "#/properties/a, pattern with maxLength"]),
        ("structural_tag", format_of({"type": "grammar", "grammar": "start: missing"}),
         ["format.tags[0].content: ", "missing", "line 1, column 8"]),
    ],
)  # fmt: skip
def test_what_the_library_cannot_do_is_told_in_our_words(
    tmp_path: Path, kind: ConstraintKind, source: Any, places: list[str]
) -> None:
    with pytest.raises(GrammarError) as caught:
        made(tmp_path, Constraint(kind, source if kind == "ebnf" else json.dumps(source)))
    message = str(caught.value)
    assert [place for place in places if place not in message] == []
    for word in ("SearchRegex", "expressions", "lexer", "NoExtension", "fuel", "Parser"):
        assert word not in message


@pytest.mark.parametrize(
    "conditions",
    [
        {"pattern": r"^(?=.{1,64}$)(\S+\s+){4}\S+$"},
        {"allOf": [{"pattern": CRON["pattern"]}, {"pattern": "^.{1,64}$"}]},
        {"allOf": [{"pattern": "a.{300}"}, {"pattern": "b.{300}"}]},
    ],
)
def test_products_of_patterns_that_the_library_gives_up_within_a_schema(
    tmp_path: Path, conditions: dict[str, Any]
) -> None:
    schema = object_of("v", {"type": "string", **conditions})
    assert made(tmp_path, Constraint("json_schema", json.dumps(schema))).backend == "llguidance"


def test_equal_parts_and_strings_are_tried_once() -> None:
    tried: list[bool] = []
    form = format_of({"type": "json_schema", "json_schema": object_of("a", SHORT)})
    form["format"]["tags"] *= 3
    constraint = Constraint("structural_tag", json.dumps(form))
    check_strings(constraint, lambda _, is_lark: tried.append(is_lark))
    assert tried == [False]


def test_none_for_automata_and_where_the_search_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made(tmp_path, Constraint("regex", "a+")).completion is None

    def fail(*_: object) -> None:
        raise BaseException("a panic")

    monkeypatch.setattr(WitnessFinder, "find_ahead", fail)
    assert made(tmp_path / "again", OPEN).completion is None
