"""A process that children are forked from."""

from collections.abc import AsyncIterator

import pytest

from tests.tokenizer_proc.forking import LateForker
from tokenizer_proc.children.forker import Forker


@pytest.fixture
async def forker() -> AsyncIterator[Forker]:
    """One that ends with the test."""
    forker = LateForker()
    yield forker
    await forker.close()
