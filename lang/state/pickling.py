"""What `pickle` writes of a state: its contents, without the run that it belongs to.

A state that is read back has its text, turns, variables, trace and error. It may go on, with the
default back end of its new process; its forks are independent of it.
"""

from copy import copy
from typing import Any

from lang.errors import LangError
from lang.run.program import Program
from lang.run.stream import Stream
from lang.run.variables import Slot
from lang.run.worker import Worker

_FIELDS = ("transcript", "trace", "num_traced")


def taken(stream: Stream) -> dict[str, Any]:
    """The contents of an idle stream, for `pickle` to write if it can write the values."""
    program = stream.program
    slots = {name: slot for name, slot in stream.variables.items() if slot.done.done()}
    return {
        "fields": {name: copy(getattr(stream, name)) for name in _FIELDS},
        "variables": {name: _of_slot(slot) for name, slot in slots.items()},
        "error": _portable(stream.failure),
        "body_error": _portable(program.body_error),
        "template": program.template,
        "defaults": program.defaults,
        "seed": stream.position.seed_of_copy(),
    }


def restored(state: dict[str, Any]) -> Worker:
    """The stream that was `taken`, in a run of its own that is over. Raises LangError for what
    another version of this module has written."""
    if state["fields"].keys() != {*_FIELDS}:
        raise LangError("the state was pickled by another version of lang: pickle it with this one")
    program = Program(None, state["defaults"])
    program.template = state["template"]
    program.end_body(state["body_error"])
    worker = Worker(program)
    made = worker.stream
    for name, value in state["fields"].items():
        setattr(made, name, value)
    made.error, made.position.seed = state["error"], state["seed"]
    for name, (value, error, text, meta) in state["variables"].items():
        slot = made.variables[name] = Slot(name)
        slot.text, slot.meta = text, meta
        if error is None:
            slot.done.set_result(value)
        else:
            slot.done.set_exception(error)
    return worker


def _of_slot(slot: Slot) -> tuple[Any, BaseException | None, str, dict[str, Any] | None]:
    error = slot.done.exception()
    value = slot.done.result() if error is None else None
    return value, _portable(error), slot.text, slot.meta


def _portable(error: BaseException | None) -> BaseException | None:
    """The error, or one of ours with its text: not every exception can be pickled."""
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return LangError(f"{type(error).__name__}: {error}")
    return error
