"""The limits of callers with keys: read from the files of keys, and again when these change; and
what is left of their rates, which a file in the ring's directory has for the next tokenizer."""

import logging
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from srt.args import ServerArgs, key_files_of, key_lines_of
from srt.callers.changed_files import ChangedFiles
from srt.callers.key_lines import CallerLimits, limits_by_caller
from srt.machine import private
from srt.wire.errors import ConfigError
from tokenizer_proc.queueing.callers import Callers

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
_NAME = "rates"


class _Noted(msgspec.Struct):
    """Levels by caller, as `Rates.levels`, at `time_s` (time.time())."""

    time_s: float
    levels: dict[str, list[float | None]]


class KeyLimits:
    """Those of the server's options, for one front. Raises ConfigError for files that are wrong at
    first; later ones change nothing, and the gateway logs why."""

    def __init__(self, args: ServerArgs, directory: Path) -> None:
        self._args, self._path = args, directory / _NAME
        self._files = ChangedFiles(key_files_of(args))
        self._table = self._read()
        self._checked_s = 0.0
        self._noted: dict[str, list[float | None]] = {}

    def callers(self, now: float) -> Callers:
        """Callers with these limits, which go on with the rates that were noted."""
        callers = Callers(self._table, now)
        with suppress(OSError, msgspec.MsgspecError):
            noted = msgspec.json.decode(self._path.read_bytes(), type=_Noted)
            callers.rates.restore(noted.levels, time.time() - noted.time_s)
        return callers

    def keep(self, callers: Callers, now: float) -> None:
        """Take over what has changed, and note what is left of rates; called often."""
        if not key_files_of(self._args) or now < self._checked_s + CHECK_INTERVAL_S:
            return
        self._checked_s = now
        with suppress(ConfigError):
            table = self._files.take(self._read)
            if table is not None:
                callers.set_limits(table, now)
        levels = callers.rates.levels(now)
        if levels != self._noted:
            self._noted = levels
            self._note(_Noted(time.time(), levels))

    def _read(self) -> dict[str, CallerLimits]:
        return limits_by_caller(key_lines_of(self._args))

    def _note(self, noted: _Noted) -> None:
        new = self._path.with_suffix(".new")
        try:
            with open(new, "wb", opener=private) as file:
                file.write(msgspec.json.encode(noted))
            new.replace(self._path)
        except OSError as error:
            log.warning("rates begin anew if the tokenizer dies: %s", error)
