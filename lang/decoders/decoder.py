"""What programs get of a decoder: one that can be called, with a loop or without one."""

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from lang import loop
from lang.functions.prepared import Prepared, Runnable
from lang.run.source import place_of_caller

T = TypeVar("T")


class Decoder(Generic[T]):
    """Calling it runs the program, with the arguments of `run`. `decode` gets those, taken apart,
    and the line of the program that calls."""

    def __init__(
        self, function: Runnable, decode: Callable[[Prepared, str], Coroutine[Any, Any, T]]
    ) -> None:
        self._function, self._decode = function, decode

    def __call__(
        self, *args: Any, backend: Any = None, timeout_s: float | None = None, **kwargs: Any
    ) -> T:
        """What the decoder makes of the runs."""
        prepared = self._function.prepared(args, kwargs, backend, timeout_s)
        return loop.call(self._decode(prepared, place_of_caller()))

    async def arun(
        self, *args: Any, backend: Any = None, timeout_s: float | None = None, **kwargs: Any
    ) -> T:
        """The same for programs with a loop."""
        prepared = self._function.prepared(args, kwargs, backend, timeout_s)
        return await self._decode(prepared, place_of_caller())
