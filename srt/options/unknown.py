"""What a name that is no option was probably meant to be, or is on another server."""

import difflib
from collections.abc import Iterable

from srt.options.elsewhere import ALWAYS_ON, CALLED, IN_NAME, IN_UNITS, NONE, OF_CLIENTS

_COMMANDS = {
    "ask": "run",
    "pull": "serve",
    "list": "models",
    "ls": "models",
    "start": "serve",
    "check": "doctor",
    "benchmark": "bench",
}
# Options that there were, what is here in place of them, and why they are not needed.
_FORMER = {"keep-cache": ("flush-cache", "the cache is kept, unless --flush-cache is given")}
_SERVERS = "max-running-requests"  # an option that names which are a server's have


def instead_of(name: str, known: Iterable[str]) -> str:
    """What to do instead of naming `name`, which is none of the `known` names, as the end of a
    sentence: "; did you mean --port?". Nothing if there is nothing to say."""
    by_form, form = {_form(other): other for other in known}, _form(name)
    if (other := CALLED.get(form)) in by_form:
        return f"; it is called {by_form[other]} here{IN_UNITS.get(form, '')}"
    if _SERVERS in by_form:
        if said := _of_servers(form):
            return f"; {said}"
    elif (other := OF_CLIENTS.get(form)) in by_form:
        return f"; it is called {by_form[other]} here"
    if form in _FORMER and _FORMER[form][0] in by_form:
        return f"; {_FORMER[form][1]}"
    if (command := _COMMANDS.get(form)) in by_form:
        return f"; did you mean {command}?"
    nearest = difflib.get_close_matches(form, by_form, n=1, cutoff=0.75)
    return f"; did you mean {by_form[nearest[0]]}?" if nearest else ""


def _of_servers(form: str) -> str:
    """What an option of another server is here, if it is none with another name."""
    if (off := ALWAYS_ON.get(form)) is not None:
        return "not needed: it is always on" + (f" ({off} turns it off)" if off else "")
    if form in IN_NAME:
        return f"write it into the name of the model: {IN_NAME[form]}"
    if (why := NONE.get(form)) is not None:
        return "there is none" + (f": {why}" if why else "")
    return ""


def _form(name: str) -> str:
    """A name as the tables have it. The case of a short option counts: llama.cpp's -c is a size and
    its -C a mask."""
    is_short = name.startswith("-") and not name.startswith("--")
    name = name if is_short else name.lower()
    return name.replace("_", "-").lstrip("-").removeprefix("srt-")[:80]
