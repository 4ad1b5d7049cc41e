"""The front finds grammars that are ready, and remembers a bounded number of constraints."""

import os
import time
from pathlib import Path

import pytest

from srt.ring.places import Ring
from srt.wire.constraint import Constraint, artefact_key
from srt.wire.errors import BAD_REQUEST, OVERLOADED, ErrorInfo
from tokenizer_proc.admission import grammars as module
from tokenizer_proc.admission.grammars import GrammarFinder, compile_error, known_grammars

DIGITS = Constraint("regex", "[0-9]+")


def put(ring: Ring, naming: str, constraint: Constraint = DIGITS) -> Path:
    path = ring.grammars / artefact_key(constraint, naming)
    path.write_bytes(b"compiled")
    return path


def test_what_lies_ready_is_found_and_counts_as_used(tmp_path: Path) -> None:
    """Whether the finder or the compiler was there first."""
    ring = Ring(tmp_path)
    ring.grammars.mkdir()
    early = GrammarFinder(ring)
    assert early(DIGITS) == ""
    ring.write_naming("names")
    path = put(ring, "names")
    os.utime(path, (0, 0))
    for find in (early, GrammarFinder(ring)):
        assert find(DIGITS) == path.name
        assert find(Constraint("regex", "[0-9]")) == ""
    assert path.stat().st_mtime > time.time() - 100
    path.unlink()
    assert early(DIGITS) == ""


def test_a_compiler_with_other_names(tmp_path: Path) -> None:
    ring = Ring(tmp_path)
    ring.grammars.mkdir()
    ring.write_naming("names")
    find = GrammarFinder(ring)
    put(ring, "names")
    ring.write_naming("others")
    assert find(DIGITS) != ""  # it stays valid until the scheduler changes
    find.refresh()
    assert find(DIGITS) == ""
    assert find(DIGITS) == "" != put(ring, "others").name == find(DIGITS)


def test_constraints_are_forgotten_by_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN_CHARS", 33)
    monkeypatch.setattr(module, "ENTRY_CHARS", 10)
    known = known_grammars()
    for key in "abacd":
        known[key] = Constraint("regex", key)
    assert len(known) == 3 and known.get("b") is None
    assert known.get("a") == Constraint("regex", "a")
    known["e"] = Constraint("regex", "e" * 9)
    assert len(known) == 2 and known.get("d") is None is not known.get("a")
    known["e"] = Constraint("regex", "e" * 9)
    assert len(known) == 2
    known["f"] = Constraint("regex", "f" * 40)  # more than all: it alone
    assert len(known) == 1 and known.get("f") is not None


def test_the_compilers_errors_have_the_path_in_the_constraint() -> None:
    tag = Constraint("structural_tag", "{}")
    inside = compile_error(ErrorInfo(BAD_REQUEST, "is empty", "format.tags[0].begin"), tag)
    assert inside.message == "structural_tag.format.tags[0].begin: is empty"
    assert compile_error(ErrorInfo(BAD_REQUEST, "no"), tag).message == "structural_tag: no"
    full = ErrorInfo(OVERLOADED, "full", retryable=True)
    assert compile_error(full, tag) == full
