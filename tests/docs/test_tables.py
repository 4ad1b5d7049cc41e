"""The tables of the documents agree with the code."""

from pathlib import Path

import pytest

from tests.docs.tables import TABLES, documents, names_in, rewritten


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_tables_are_up_to_date(document: Path) -> None:
    text = document.read_text()
    assert rewritten(text) == text, "run `python -m tests.docs.tables`"


def test_every_table_is_in_one_document() -> None:
    names = [name for document in documents() for name in names_in(document.read_text())]
    assert sorted(names) == sorted(TABLES)


def test_an_outdated_table_is_noticed() -> None:
    text = "<!-- table: errors -->\n| old |\n<!-- end -->\n"
    assert names_in(text) == ["errors"]
    assert "| 429 | `overloaded` |" in rewritten(text)
