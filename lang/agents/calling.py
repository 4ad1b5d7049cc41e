"""One call of a tool: in a thread of its own or, if it is `async def`, on the language's loop.

However it ends, there is an `Outcome`, which is what the log has. A thread cannot be ended: one
that takes longer than it may is left to itself, and ends with the process at the latest. Programs
that the tool runs are part of the run around it, and end with the call.
"""

import asyncio
import contextvars
import inspect
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from lang import loop
from lang.agents.tools import Tool
from lang.run.program import Program, running

GRACE_S = 1.0  # for an `async def` tool that was cancelled to put its things away


class Outcome(Struct, frozen=True, omit_defaults=True):
    """What a tool returned, as JSON has it, or why it did not return."""

    value: Any = None
    error: str | None = None

    @property
    def text(self) -> str:
        """What the model reads."""
        if self.error is not None:
            return f"error: {self.error}"
        if isinstance(self.value, str):
            return self.value
        return msgspec.json.encode(self.value).decode()


class _Ended(NamedTuple):
    result: Any = None
    error: BaseException | None = None


async def outcome_of(
    tool: Tool, arguments: Raw, timeout_s: float | None, program: Program
) -> Outcome:
    """Call a tool with what the model wrote, for `timeout_s` at most; programs that it runs are in
    `program`, which ends with it. Raises CancelledError only."""
    with running(program):
        context = contextvars.copy_context()

    def call() -> Any:
        args, kwargs = tool.bound(arguments)
        return tool.function(*args, **kwargs)

    error: BaseException | None = None
    try:
        async with asyncio.timeout(timeout_s):
            if tool.is_async:
                ended = await _awaited(call, context)
            else:
                ended = await _in_thread(tool.name, call, context)
    except TimeoutError as expired:
        error = expired
        ended = _Ended(error=TimeoutError(f"it took longer than timeout_s={timeout_s}"))
    except asyncio.CancelledError as cancelled:
        error = cancelled
        raise
    finally:
        if error is not None:
            program.cancel()
        program.end_body()
    return _outcome(ended)


async def _in_thread(name: str, call: Callable[[], Any], context: contextvars.Context) -> _Ended:
    # Not one of a pool's threads: those that never end would use the pool up, and hold the process.
    future = loop.in_thread(f"tool {name}", partial(context.run, _caught, call))
    await loop.arrival(future)
    ended = future.result()
    if inspect.isawaitable(ended.result):  # an `async def` inside a decorator's function
        return await _awaited(lambda: ended.result, context)
    return ended


def _caught(call: Callable[[], Any]) -> _Ended:
    try:
        return _Ended(call())
    except BaseException as error:  # also SystemExit: a tool ends nothing but itself
        return _Ended(error=error)


async def _awaited(call: Callable[[], Awaitable[Any]], context: contextvars.Context) -> _Ended:
    async def body() -> _Ended:
        try:
            return _Ended(await call())
        except BaseException as error:  # SystemExit would end the loop of all programs
            return _Ended(error=error)

    task = asyncio.get_running_loop().create_task(body(), context=context)
    try:
        await asyncio.wait({task})
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)


def _outcome(ended: _Ended) -> Outcome:
    if ended.error is not None:
        return Outcome(error=_words(ended.error))
    try:
        plain = msgspec.to_builtins(ended.result, str_keys=True)
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False).encode()
    except Exception as error:
        return Outcome(error=_words(TypeError(f"JSON cannot have the result: {error}")))
    return Outcome(msgspec.json.decode(text))  # as a replay has it


def _words(error: BaseException) -> str:
    """An error as a text that JSON can have, whatever its class does."""
    try:
        text = str(error)
    except Exception:
        text = ""
    words = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return words.encode(errors="replace").decode()
