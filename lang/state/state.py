"""`ProgramState`, which a program's functions get as `s`.

Invariant: only methods that read a value wait, and no wait lasts for ever: it
returns, or raises a ProgramError whose cause is the state's first error.
"""

import html
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from lang import loop
from lang.errors import ProgramError, original
from lang.generation.constrained import RETURN
from lang.generation.selects import Score
from lang.logs.trace import Trace, Usage
from lang.run.ir import Expr, Part
from lang.run.joins import Join, fork
from lang.run.program import Program, current, know
from lang.run.variables import Slot
from lang.run.worker import Worker
from lang.state import pickling
from lang.state.certificates import Certificate, certificate_of
from lang.state.effects import Effects
from lang.state.forks import CONCATE_AND_APPEND, GATHER_VARIABLE, Forking
from lang.state.refs import Ref, Variable
from lang.state.streaming import TextReader, TreeReader, async_pieces, pieces

Errors = Literal["raise", "keep"]


class ProgramState(Forking, Effects):
    """A prompt that grows: `s += "text"`, `s += gen("name")`, `s["name"]`."""

    _returned: Any

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._stream = worker.stream

    # ---- extending -----------------------------------------------------------------------------

    def __iadd__(self, other: Part) -> "ProgramState":
        if other is None:
            raise ValueError("a state cannot be extended by None")
        if not isinstance(other, str | Expr):
            raise TypeError(f"a state is extended by text or expressions, not {other!r}")
        self._worker.submit(other)
        return self

    # ---- variables -----------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The variable's value, as soon as it has one.

        Raises KeyError for a variable that nothing writes, ProgramError if writing it failed.
        """
        while (change := self._not_yet(name)) is not None:
            loop.wait(change)
        slot = self._slot(name)
        loop.wait(slot.done)
        return self._value(slot)

    def __setitem__(self, name: str, value: Any) -> None:
        self._worker.write(name, value)

    def __contains__(self, name: str) -> bool:
        """Whether the variable already has its value; this does not wait."""
        slot = self._stream.variables.get(name)
        return slot is not None and slot.done.done() and slot.done.exception() is None

    async def get(self, name: str) -> Any:
        """`s[name]` for `async def` programs."""
        while (change := self._not_yet(name)) is not None:
            await loop.arrival(change)
        slot = self._slot(name)
        await loop.arrival(slot.done)
        return self._value(slot)

    def var(self, name: str) -> Ref:
        """The variable as a reference, without waiting: a text for states and pure functions. Its
        gen may still be at work. Raises KeyError for a variable that nothing was given to write."""
        slot = self._slot(name)
        return Variable(slot, None if self._stream.variables.has_inherited(slot) else self._worker)

    @property
    def ret_value(self) -> Any:
        """What the program's function returned; of one with a return type that returned nothing,
        the variable `return` if there is one. Waits for it.

        Raises AttributeError while the function itself runs, and if it failed; ProgramError if the
        variable was not written.
        """
        if not hasattr(self, "_returned") and current.get() is not self.program:
            loop.wait(self.program.body_done)
        if not hasattr(self, "_returned"):
            raise AttributeError("ret_value: the function has not returned")
        know(self.program.waits.calls)
        if self._returned is None and self.program.returns is not None:
            return self[RETURN] if RETURN in self._stream.variables else None
        return self._returned

    @ret_value.setter
    def ret_value(self, value: Any) -> None:
        self._returned = value

    def get_meta_info(self, name: str, timeout: float | None = None) -> dict[str, Any] | None:
        """What the back end reported of a variable (tokens, finish reason, log-probabilities).

        Waits as `s[name]` does, `timeout` seconds at most (TimeoutError). None for a variable that
        the model did not write. A gen whose text is not a value of its type has meta info too.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while (change := self._not_yet(name)) is not None:
            loop.wait(change, _left_s(end))
        slot = self._stream.variables.get(name)
        if slot is None:
            return None
        loop.wait(slot.done, _left_s(end))
        know(slot.after)
        if slot.meta is None:
            self._value(slot)
        return slot.meta

    def _not_yet(self, name: str) -> "Future[None] | None":
        """What to wait for if the function, running beside the reader, may still write it."""
        program, known = self.program, self._stream.variables
        if name in known or not program.streaming or current.get() is program:
            return None
        change = self._worker.change()
        return None if name in known or program.body_done.done() else change

    def _slot(self, name: str) -> Slot:
        slot = self._stream.variables.get(name)
        if slot is None:
            failure = self._stream.failure
            if failure is not None:
                raise ProgramError(f"{name!r} was never written: {failure}") from failure
            raise KeyError(name)
        return slot

    def _value(self, slot: Slot) -> Any:
        know(slot.after)
        error = slot.done.exception()
        if error is not None:
            raise ProgramError(f"{slot.name!r} was not written: {_words(error)}") from error
        return slot.done.result()

    # ---- the whole state -----------------------------------------------------------------------

    def text(self, errors: Errors = "raise") -> str:
        """All text, once everything submitted so far is done. Raises ProgramError if the state has
        failed; with `errors="keep"` it is then the text up to the error."""
        self._wait_for_all(errors)
        return self._stream.transcript.text

    def messages(self, errors: Errors = "raise") -> list[dict[str, Any]]:
        """The closed turns of the chat, as OpenAI's API has them; `errors` as for `text`."""
        self._wait_for_all(errors)
        template = self.program.template
        return self._stream.transcript.openai_messages(template)

    def sync(self) -> None:
        """Wait for everything submitted so far. Raises ProgramError if the state has failed."""
        self._wait()
        self._check()

    async def wait(self) -> None:
        """`sync` for `async def` programs."""
        await loop.arrival(self._worker.barrier())
        know(self._stream.waits.calls)
        self._check()

    def _wait_for_all(self, errors: Errors) -> None:
        if errors not in ("raise", "keep"):
            raise ValueError(f"errors must be 'raise' or 'keep', not {errors!r}")
        self._wait()
        if errors == "raise":
            self._check()

    def _wait(self) -> None:
        loop.wait(self._worker.barrier())
        know(self._stream.waits.calls)

    def _check(self) -> None:
        failure = self._failure()
        if failure is not None:
            raise ProgramError(f"the state failed: {_words(failure)}") from failure

    def error(self) -> BaseException | None:
        """The first error of this state, or of its function; None if there is none."""
        self._wait()
        return self._failure()

    def _failure(self) -> BaseException | None:
        return self._stream.failure or original(self.program.body_error)

    def vars(self) -> dict[str, Any]:
        """The variables that have a value, once everything submitted so far is done."""
        self._wait()
        slots = list(self._stream.variables.items())
        return {
            name: slot.done.result()
            for name, slot in slots
            if name[:1] != "<" and slot.done.done() and slot.done.exception() is None
        }

    def usage(self) -> Usage:
        """The tokens that the calls of this state and of its forks have taken so far."""
        return self.trace().usage()

    def trace(self) -> Trace:
        """Every call so far of this state and of its forks."""
        self._wait()
        return self._stream.trace

    def cancel(self) -> None:
        """End the whole run: its requests are aborted, and waits raise ProgramError."""
        self.program.cancel()

    def certificate(self) -> Certificate:
        """Every call so far: prompts, parameters, the model's fingerprint, answers, and a hash."""
        trace = self.trace()
        return certificate_of(trace, loop.call(self.program.fingerprint()))

    # ---- scores --------------------------------------------------------------------------------

    def score(self, continuations: Sequence[str]) -> dict[str, float]:
        """The log-probability that each text comes next. The state does not change."""
        return self._scored(continuations, normalised=False)

    def distribution(self, choices: Sequence[str]) -> dict[str, float]:
        """The probability of each text, given that one of them comes next."""
        return self._scored(choices, normalised=True)

    def _scored(self, texts: Sequence[str], normalised: bool) -> dict[str, float]:
        slot = self._worker.ask(Score(None, texts, normalised))
        loop.wait(slot.done)
        scores: dict[str, float] = self._value(slot)
        return scores

    # ---- forks ---------------------------------------------------------------------------------

    def _forked(self, size: int) -> list["ProgramState"]:
        return [ProgramState(child) for child in fork(self._worker, size)]

    def _join(self, forks: Sequence["ProgramState"], mode: str) -> None:
        self._worker.submit(joined([each._worker for each in forks], mode))

    # ---- streams -------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The run that this state belongs to."""
        return self._stream.program

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The state's text, or one variable's, piece by piece. Leaving it early ends the run.

        Raises ProgramError at the end of a state that failed, KeyError for a variable that the
        finished program never wrote.
        """
        return pieces(TextReader(self._worker, var_name))

    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for `async for`; with `return_meta_data` pairs of a piece and meta info."""
        return async_pieces(TextReader(self._worker, var_name, with_meta=return_meta_data))

    def tree_iter(self) -> Iterator[tuple[tuple[int, ...], str]]:
        """The pieces of this state and of its forks, each with the path of its state: () is this
        state, (1, 0) the first fork of its second fork. The run must stream."""
        return pieces(TreeReader(self._worker))

    def tree_async_iter(self) -> AsyncIterator[tuple[tuple[int, ...], str]]:
        """`tree_iter` for `async for`."""
        return async_pieces(TreeReader(self._worker))

    def __iter__(self) -> Iterator[str]:
        return self.text_iter()

    def __aiter__(self) -> AsyncIterator[str]:
        return self.text_async_iter()

    # ---- elsewhere -----------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        """Once everything is done: see `pickling`."""
        self._until_over()
        # What the function returned is often the state itself, so it follows.
        own = {"_returned": self._kept_value()} if hasattr(self, "_returned") else {}
        return _restored, (pickling.taken(self._stream),), own

    def _kept_value(self) -> Any:
        try:
            return self.ret_value
        except ProgramError:  # the variable has the error
            return None

    def _until_over(self) -> None:
        if current.get() is not self.program:
            loop.wait(self.program.body_done)
        self._wait()

    def _repr_html_(self) -> str:
        """For notebooks, once everything is done."""
        self._until_over()
        error = self.error()
        end = "" if error is None else f"<pre>{html.escape(_words(error))}</pre>"
        return self._stream.trace.html_of(self._stream.transcript.text) + end

    def __repr__(self) -> str:
        is_over = self._worker.is_idle and self.program.body_done.done()
        return f"ProgramState({self._stream.transcript.text!r}{'' if is_over else ', at work'})"

    def __format__(self, spec: str) -> str:
        raise TypeError("a state is not text: use s.text()")


def joined(children: Sequence[Worker], mode: str) -> Join:
    """What joins forks."""
    names = [name for child in children for name in child.stream.variables.new_names()]
    gathered = list(dict.fromkeys(names)) if mode == GATHER_VARIABLE else []
    return Join(children, gathered, mode == CONCATE_AND_APPEND)


def _restored(taken: dict[str, Any]) -> ProgramState:
    return ProgramState(pickling.restored(taken))


def _left_s(end: float) -> float | None:
    return None if end == math.inf else max(0.0, end - time.monotonic())


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
