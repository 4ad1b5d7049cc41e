"""Modules that test modules need at their top and that take long to import, such as torch.

Every process that runs tests imports all test modules, but only one of them runs those that need
torch (`groups.py`):

    if TYPE_CHECKING:
        import torch
    else:
        torch = late("torch")

What of it is used while the module is imported, as in a decorator, loads it at once.
"""

import importlib
from typing import Any


class Late:
    """Stands for a module, and imports it at the first look at one of its attributes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


def late(name: str) -> Any:
    """The module of this name, to be imported when it is first used. Raises ImportError then."""
    return Late(name)
