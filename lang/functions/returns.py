"""What a function's annotation says that it returns, looked up when a gen of it is performed."""

from collections.abc import Callable
from functools import partial
from types import NoneType, SimpleNamespace
from typing import Any, get_type_hints

from lang.run.source import closed_over

_NOTHING = (None, NoneType, Any, "None", "Any", "typing.Any")


def returns_of(function: Callable[..., Any]) -> Callable[[], Any] | None:
    """What finds the return type; None without an annotation, or one that says nothing."""
    try:
        annotation = getattr(function, "__annotations__", {}).get("return")
    except NameError:  # newer Pythons evaluate all annotations here
        annotation = "?"
    is_nothing = any(annotation is each or annotation == each for each in _NOTHING)
    return None if is_nothing else partial(_return_type, function)


def _return_type(function: Callable[..., Any]) -> Any:
    """The type; the names in it are looked up in the function's module and, if it uses them, in
    what encloses it. Raises TypeError for one that is not found."""
    inner = getattr(function, "__func__", function)
    try:
        own = SimpleNamespace(__annotations__={"return": inner.__annotations__["return"]})
        known, local = getattr(inner, "__globals__", {}), closed_over(inner)
        hints = get_type_hints(own, known, local, include_extras=True)
    except (NameError, AttributeError, ValueError, SyntaxError, TypeError) as error:
        name = getattr(function, "__name__", "the function")
        advice = "define it in the module, above the first run"
        raise TypeError(f"the return type of {name} cannot be found: {error}; {advice}") from error
    return hints["return"]
