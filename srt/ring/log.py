"""Logging for people: a short line per record, the process's name in front, colour on a tty."""

import logging
import os
import sys

_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}
# Some of them would write addresses that give access to files.
_NOISY = (
    *("httpx", "httpx2", "httpcore", "httpcore2", "hpack", "h11", "filelock", "huggingface_hub"),
    *("asyncio", "uvicorn"),
)
_DIM, _RESET = "\033[2m", "\033[0m"


def paint(text: str, code: str) -> str:
    """`text` in an ANSI colour if stderr is a terminal that wants colours."""
    return f"\033[{code}m{text}{_RESET}" if _wants_colour() else text


def set_up_logging(name: str, level: str) -> None:
    """Log to stderr as process `name`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(name))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel("WARNING")


def _wants_colour() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ


class _Formatter(logging.Formatter):
    def __init__(self, name: str) -> None:
        super().__init__("%(message)s")
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        stamp = self.formatTime(record, "%H:%M:%S")
        head = f"{stamp} {self._name:<11}"
        body = super().format(record)
        if not _wants_colour():
            level = "" if record.levelno <= logging.INFO else f"{record.levelname}: "
            return f"{head} {level}{body}"
        return f"{_DIM}{head}{_RESET} {_COLOURS.get(record.levelname, '')}{body}{_RESET}"
