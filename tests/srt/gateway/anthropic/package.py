"""The unmodified package of Anthropic; tests that use it are skipped where it is not."""

from typing import Any

import pytest

anthropic: Any = pytest.importorskip("anthropic", reason="the package anthropic is not installed")
