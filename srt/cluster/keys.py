"""The keys of machines that serve together: a folder for each machine, with its own key pair and
the public keys of others.

    secret    the machine's secret key, of mode 0600
    public    its public key, for other machines
    head      on a node: the public key of the head that it joins
    allowed/  on the head: the public keys of those that may join, any number in each file

The head looks at `allowed` again and again: who puts a file there, or takes one away, restarts
nothing.
"""

import errno
import ipaddress
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from srt.cluster.curve import Keys, new_keys, public_of
from srt.wire.errors import ConfigError, quoted

log = logging.getLogger(__name__)

SECRET, PUBLIC, HEAD, ALLOWED = "secret", "public", "head", "allowed"
LOOK_INTERVAL_S = 0.5  # a key that is removed holds no longer than this
_UNKNOWN_INTERVAL_S = 0.05  # so often strangers can make the files be read,
_UNKNOWN_SHARE = 0.05  # if that takes no more of the time
MAX_FILES, MAX_FILE_BYTES = 1024, 64 * 1024
_KEY = re.compile("[0-9a-fA-F]{64}")
_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_REFUSED = "whose key it would be is not allowed"
_OF_OTHERS = 0o037  # a group may read it, as that of a container's volume


def make_keys(directory: Path) -> Keys:
    """Make a key pair and an empty list of allowed keys in `directory`, or load the pair that is
    there already.

    Raises ConfigError if it cannot be written, or as `load_keys`.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / ALLOWED).mkdir(mode=0o700, exist_ok=True)
        if not (directory / SECRET).exists():
            with suppress(FileExistsError):  # somebody else has made one meanwhile
                _write(directory / SECRET, new_keys().secret, 0o600, replaces=False)
        keys = load_keys(directory)
        if not _holds(directory / PUBLIC, keys.public):
            _write(directory / PUBLIC, keys.public, 0o644)
    except OSError as error:
        raise ConfigError(f"keys cannot be made in {directory}: {error.strerror}") from error
    return keys


def load_keys(directory: Path) -> Keys:
    """The key pair of `directory`. Raises ConfigError if there is none, or others can read it."""
    path = directory / SECRET
    secret = _read_key(path, f"make keys with `srt keys {directory}`")
    mode = path.stat().st_mode & 0o777
    if mode & _OF_OTHERS:
        raise ConfigError(
            f"{path} has mode {mode:04o}, so that others can read or change it: make a new pair, "
            "or if nobody has read it, `chmod 600` it"
        )
    return Keys(public_of(secret), secret)


def load_head_key(directory: Path) -> str:
    """The public key of the head that a node joins. Raises ConfigError if it is not there."""
    advice = f"`srt keys {directory} --head KEY` writes the head's public key there"
    return _read_key(directory / HEAD, advice)


def set_head_key(directory: Path, key: str) -> None:
    """Write the public key of the head that a node joins. Raises ConfigError."""
    _write_public(directory / HEAD, checked_key(key))


def allow(directory: Path, key: str, name: str = "") -> str:
    """Add a public key to those that the head with the keys `directory` lets in; returns the name
    of its file, `name` or one made of the key. Raises ConfigError."""
    key = checked_key(key)
    name = name or f"key-{key[:12]}"
    _write_public(directory / ALLOWED / _checked_name(name), key)
    return name


def remove(directory: Path, name: str) -> None:
    """Take the keys of the file `name` from those that are allowed. Raises ConfigError."""
    path = directory / ALLOWED / _checked_name(name)
    try:
        path.unlink()
    except OSError as error:
        raise ConfigError(f"{path} cannot be removed: {error.strerror}") from error


def checked_key(key: str) -> str:
    """A key as it is compared. Raises ConfigError for what is none."""
    key = key.strip()
    if _KEY.fullmatch(key) is None:
        raise ConfigError(f"{quoted(key)} is not a key: these have 64 hexadecimal digits")
    return key.lower()


def require_loopback(address: str) -> None:
    """Raise ConfigError unless `address`, `tcp://HOST:PORT`, is one that other machines cannot
    reach, by its number: only there everything may go without keys."""
    if not is_loopback(address):
        raise ConfigError(
            f"--insecure with {address}: without keys only 127.0.0.1 and ::1 are allowed; `srt "
            "keys DIR` makes keys"
        )


def is_loopback(address: str) -> bool:
    """Whether `address`, `tcp://HOST:PORT`, is by its number one of this machine alone."""
    try:
        host = ipaddress.ip_address(urlsplit(address).hostname or "")
    except ValueError:
        return False
    return host.is_loopback and ";" not in address  # ZeroMQ goes from the first to the second


class AllowedKeys:
    """The public keys in the files of a folder, of which hidden ones do not count. In a file there
    is a key on each line; empty lines, and what follows a #, say nothing. While a file cannot be
    read its keys are not allowed; but while none can, for want of descriptors, nothing changes."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._now = folder, now
        self._looked_at, self._cost_s = float("-inf"), 0.0
        self._keys: set[str] = set()
        self._faults: set[str] = set()

    def is_allowed(self, key: str) -> bool:
        """Whether it was allowed LOOK_INTERVAL_S ago, or later. One that is new counts at once."""
        self._look(LOOK_INTERVAL_S)
        if key not in self._keys:
            self._look(max(_UNKNOWN_INTERVAL_S, self._cost_s / _UNKNOWN_SHARE))
        return key in self._keys

    def _look(self, interval_s: float) -> None:
        """Read all files, if that was so long ago: their times do not tell two changes within a
        tick apart, and they are few."""
        now = self._now()
        if now - self._looked_at < interval_s:
            return
        self._looked_at, started = now, time.perf_counter()
        faults: set[str] = set()
        try:
            self._keys = self._read_all(faults)
        except OSError as error:  # strangers' connections may have taken all descriptors
            faults = {
                f"{self._folder} cannot be read ({error.strerror}): the keys of before stay allowed"
            }
        for fault in faults - self._faults:
            log.warning("%s", fault)
        self._faults = faults
        self._cost_s = time.perf_counter() - started

    def _read_all(self, faults: set[str]) -> set[str]:
        """The keys in all files. Raises OSError if there are no descriptors to read them by."""
        keys: set[str] = set()
        for path in self._files(faults):
            shown = repr(str(path))  # a name may have anything in it
            try:
                text = _read(path)
            except (OSError, ValueError) as error:
                faults.add(f"{shown} cannot be read ({_reason(error)}): {_REFUSED}")
                continue
            for number, line in enumerate(text.splitlines(), 1):
                word = line.partition("#")[0].strip()
                if word and _KEY.fullmatch(word) is None:
                    faults.add(f"{shown}, line {number}: this is not a key: {_REFUSED}")
                elif word:
                    keys.add(word.lower())
        return keys

    def _files(self, faults: set[str]) -> list[Path]:
        try:
            names = sorted(name for name in os.listdir(self._folder) if name[0] != ".")
        except OSError as error:
            faults.add(f"{self._folder} cannot be read ({_reason(error)}): {_REFUSED}")
            return []
        if len(names) > MAX_FILES:
            faults.add(f"{self._folder} has more than {MAX_FILES} files, of which the first count")
        paths = (self._folder / name for name in names[:MAX_FILES])
        return [path for path in paths if path.is_file()]


def _reason(error: OSError | ValueError) -> object:
    """Why a file cannot be read. Raises the error if no other file could be read either."""
    if not isinstance(error, OSError):
        return error
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise error
    return error.strerror


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{quoted(name)} is no name for a key: it has at most 64 letters, digits, and - _ . "
            "after the first"
        )
    return name


def _read_key(path: Path, advice: str) -> str:
    try:
        return checked_key(_read(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} cannot be read ({reason}): {advice}") from error
    except ConfigError:
        # What was there may be a secret that has lost a digit: it is not shown.
        raise ConfigError(f"{path} does not hold a key: {advice}") from None


def _read(path: Path) -> str:
    """Raises OSError, or ValueError with a reason that shows nothing of what is there."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it is longer than {MAX_FILE_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not a text") from None


def _holds(path: Path, key: str) -> bool:
    try:
        return _read(path).strip() == key
    except (OSError, ValueError):
        return False


def _write_public(path: Path, key: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, key, 0o644)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _write(path: Path, key: str, mode: int, *, replaces: bool = True) -> None:
    """At once: who reads meanwhile finds what was there, or all of the key. Raises OSError, which
    is FileExistsError if there is a file that this does not replace."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(f"{key}\n")
    try:
        if replaces:
            new.replace(path)
        else:
            path.hardlink_to(new)
    finally:
        new.unlink(missing_ok=True)
