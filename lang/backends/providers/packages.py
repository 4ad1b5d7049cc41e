"""Providers' official packages: imported when a back end is made, and missing ones named."""

import importlib
import os
from collections.abc import Sequence
from typing import Any

from lang.backends.openai_host import checked_key
from srt import forked
from srt.wire.errors import ConfigError

_HTTP_LIBRARIES = {"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests", "h11", "ssl"}


def package(name: str, who: str, extra: str) -> Any:
    """The module of a package. Raises ConfigError that names the extra which brings it."""
    try:
        with forked.undivided():  # a child of a fork in mid-import could not use it
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # one that is installed, and lacks something itself
        package_name = extra if name == extra else name.replace(".", "-")
        raise ConfigError(
            f"{who} needs the package {package_name}: pip install 'srt-lang[{extra}]'"
        ) from None


def is_of_http(error: BaseException) -> bool:
    """Whether an error is one of an HTTP library's, which packages let through in streams."""
    return type(error).__module__.partition(".")[0] in _HTTP_LIBRARIES


def key_of(given: str | None, variables: Sequence[str], who: str, argument: str = "api_key") -> str:
    """The key that was given, or the first that the environment has. Raises ConfigError with the
    variables' names."""
    found = given or next((os.environ[name] for name in variables if os.environ.get(name)), "")
    found = checked_key(found, f"{who}: {argument}")
    if not found:
        raise ConfigError(f"{who}: {argument}: give one, or set {' or '.join(variables)}")
    return found
