"""What the command lines of several commands share: their parser, and types of arguments."""

import sys
from argparse import ArgumentParser, ArgumentTypeError
from contextlib import suppress
from typing import Any, NoReturn
from urllib.parse import urlsplit

from srt.args import numbered_lines
from srt.hub.names import shown_model
from srt.options.elsewhere import CALLED, IN_NAME, NONE
from srt.options.unknown import instead_of
from srt.wire.errors import ConfigError

_MOST, _MOST_SCALE = 10**9, 10_000
_UNKNOWN = "unrecognized arguments: "
_LIKE_HELP = {f"-{name}" for name in {*CALLED, *IN_NAME, *NONE} if name.startswith("h")}


class Parser(ArgumentParser):
    """argparse, with a suggestion for an option that it does not know, and nothing of what follows
    one, which may be a key. Errors are one line. No option may be shortened."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, which would take llama.cpp's `-hf` and such for a request for help."""
        words = list(sys.argv[1:] if args is None else args)
        if foreign := _LIKE_HELP.intersection(word.partition("=")[0] for word in words):
            self.error(f"{_UNKNOWN}{min(foreign)}")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            words = message.removeprefix(_UNKNOWN).split(" ")
            at = next((i for i, word in enumerate(words) if word.startswith("-")), None)
            if at is not None:
                option = words[at].partition("=")[0]
                known = [name for action in self._actions for name in action.option_strings]
                rest = " ..." if words[at + 1 :] or option != words[at] else ""
                words = [*words[:at], f"{option}{rest}{instead_of(option, known)}"]
            message = _UNKNOWN + " ".join(map(shown_model, words))
        self.exit(2, f"{self.prog}: error: {message}\n")


def count(text: str, least: int = 1) -> int:
    """A whole number, of at least `least`."""
    with suppress(ValueError):
        if least <= (value := int(text)) <= _MOST:
            return value
    raise ArgumentTypeError(f"must be a whole number between {least} and {_MOST}")


def count_or_none(text: str) -> int:
    """A whole number that may be 0."""
    return count(text, 0)


def positive(text: str) -> float:
    """A finite number above 0."""
    with suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise ArgumentTypeError("must be a number above 0")


def number(text: str) -> float:
    """A finite number that may be 0."""
    with suppress(ValueError):
        if 0 <= (value := float(text)) < float("inf"):
            return value
    raise ArgumentTypeError("must be a number of at least 0")


def scale(text: str) -> float:
    """A factor that leaves something which can be done."""
    if (value := positive(text)) > _MOST_SCALE:
        raise ArgumentTypeError(f"must be at most {_MOST_SCALE}")
    return value


def given(text: str) -> str:
    """What is not empty, as a variable of a shell is that nobody has set."""
    if not text:
        raise ArgumentTypeError("must not be empty")
    return text


def key(text: str) -> str:
    """What a header can carry."""
    if not (text.isascii() and text.isprintable()):
        raise ArgumentTypeError("must be of printable ASCII")
    return text


def key_of_file(path: str) -> str:
    """The first key of a file of keys, such as a server takes."""
    try:
        lines = numbered_lines(path, "api_key_file")
    except ConfigError as error:
        raise ArgumentTypeError(str(error).removeprefix("--api-key-file: ")) from None
    if not lines:
        raise ArgumentTypeError(f"{path} has no keys")
    return key(lines[0][1].split(" ")[0])


def server_url(text: str) -> str:
    """The address of a server: its scheme may be left out, and an OpenAI client's /v1 stand."""
    scheme, _, rest = text.rpartition("://")
    url = f"{scheme.lower() or 'http'}://{rest.rstrip('/').removesuffix('/v1')}"
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        is_good = is_good and not (parts.query or parts.fragment)
    except ValueError:
        is_good = False
    if not is_good:
        raise ArgumentTypeError("must be like http://127.0.0.1:30000")
    if "@" in parts.netloc:
        raise ArgumentTypeError("takes no user and no password; see --api-key")
    return url


def ring_or_url(text: str) -> str:
    """The address of a server, or ipc:// with the directory of its ring."""
    return text if text.startswith("ipc://") else server_url(text)
