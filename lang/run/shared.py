"""One answer for equal calls: same prompt, same parameters, and nothing left to chance.

Used by compiled programs. Invariant: a call that fails or is cancelled fails for itself only; those
that waited for it ask on their own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class SharedAnswers:
    """The answers of one run, by the hash of what was asked; used on the language's loop only."""

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[Any]] = {}

    async def once(self, key: str, ask: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """The answer, and whether it is another call's: `ask` makes it unless one has, or does."""
        while (made := self._answers.get(key)) is not None:
            await asyncio.wait([made])
            if not made.cancelled():
                answer: T = made.result()
                return answer, True
        mine = self._answers[key] = asyncio.get_running_loop().create_future()
        try:
            answer = await ask()
        except BaseException:
            del self._answers[key]
            mine.cancel()
            raise
        mine.set_result(answer)
        return answer, False
