"""Types of arguments that several commands have, for argparse."""

from argparse import ArgumentTypeError
from contextlib import suppress
from urllib.parse import urlsplit

from srt.args import lines_of_file
from srt.wire.errors import ConfigError


def count(text: str, least: int = 1) -> int:
    """A whole number, of at least `least`."""
    with suppress(ValueError):
        if (value := int(text)) >= least:
            return value
    raise ArgumentTypeError(f"must be a whole number of at least {least}")


def count_or_none(text: str) -> int:
    """A whole number that may be 0."""
    return count(text, 0)


def positive(text: str) -> float:
    """A finite number above 0."""
    with suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise ArgumentTypeError("must be a number above 0")


def key(text: str) -> str:
    """What a header can carry."""
    if not (text.isascii() and text.isprintable()):
        raise ArgumentTypeError("must be of printable ASCII")
    return text


def key_of_file(path: str) -> str:
    """The first line of a file of keys, such as a server takes."""
    try:
        lines = lines_of_file(path, "api_key_file")
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from None
    if not lines:
        raise ArgumentTypeError(f"{path} has no keys")
    return key(lines[0])


def server_url(text: str) -> str:
    """The address of a server: its scheme may be left out, and an OpenAI client's /v1 stand."""
    url = (text if "://" in text else f"http://{text}").rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ArgumentTypeError("must be like http://127.0.0.1:30000")
    if "@" in parts.netloc:
        raise ArgumentTypeError("takes no user and no password; see --api-key")
    return url
