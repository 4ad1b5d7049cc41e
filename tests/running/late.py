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
    """Stands for a module, and imports it at the first look at one of its attributes; not at those
    that pytest looks for in everything that a test module has."""

    def __init__(self, name: str) -> None:
        self.__dict__["__name__"] = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") or attribute == "_mock_name":
            raise AttributeError(attribute)
        value = getattr(importlib.import_module(self.__name__), attribute)
        self.__dict__[attribute] = value
        return value

    def __setattr__(self, attribute: str, value: object) -> None:
        raise AttributeError(
            f"set {attribute} in {self.__name__} itself: nobody else sees this one"
        )


def late(name: str) -> Any:
    """The module of this name, to be imported when it is first used. Raises ImportError then."""
    return Late(name)
