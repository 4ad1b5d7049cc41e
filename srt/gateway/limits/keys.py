"""The server's API keys: who may call, and who may do what concerns all callers.

Keys are kept as digests, compared in constant time, whichever of them is given, and never logged.
The gateway's actor checks from time to time whether their files have changed.
"""

import hashlib
import hmac
import logging
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from srt.args import ServerArgs
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

_TENANT_CHARS = 16


class Caller(NamedTuple):
    """Who sent a request, by its key, or by its address if the server has no keys. Only an admin
    may do what concerns others. `has_own_cache`: its prompts share no KV with others'. `has_key`:
    it has a key of the server."""

    tenant: str = ""
    is_admin: bool = True
    has_own_cache: bool = False
    has_key: bool = False


class Keys:
    """`keys` open every route; `admin_keys` also those of admins. A server's only key is an
    admin's, if it `may_be_sole`. Without any keys, everybody is an admin. With `share_cache`
    callers share the prefix cache. Where there are no admins' keys, `page_key` opens what is to be
    watched."""

    def __init__(
        self,
        keys: Sequence[str] = (),
        admin_keys: Sequence[str] = (),
        share_cache: bool = False,
        may_be_sole: bool = True,
        page_key: str = "",
    ) -> None:
        self.is_sole = may_be_sole and len(keys) == 1 and not admin_keys
        self._admins = [_digest(key) for key in (keys if self.is_sole else admin_keys)]
        self._all = [*map(_digest, keys), *self._admins]
        self._share_cache = share_cache
        self._page = [_digest(page_key)] if page_key and not self._admins else []

    @property
    def has_admins(self) -> bool:
        return bool(self._admins)

    @property
    def is_open(self) -> bool:
        """Whether everybody may call."""
        return not self._all

    def is_of_page(self, given: str) -> bool:
        """Whether this is the key that the server has made for its page."""
        return _is_among(_digest(given), self._page)

    @classmethod
    def of(cls, args: ServerArgs, may_be_sole: bool = True, page_key: str = "") -> "Keys":
        """The keys of the command line and of the files. Raises ConfigError."""
        for path in _files(args):
            _warn_of_others(path)
        shares = args.share_cache_between_keys
        return cls(args.api_keys(), args.admin_keys(), shares, may_be_sole, page_key)

    def caller(self, given: str, address: str) -> Caller | None:
        """Who calls from `address` with the key `given`; None if the server has no such key."""
        if not self._all:
            return Caller(address)
        digest = _digest(given)
        if not _is_among(digest, self._all):
            return None
        is_admin = _is_among(digest, self._admins)
        return Caller(digest.hex()[:_TENANT_CHARS], is_admin, not self._share_cache, has_key=True)


class KeyFiles:
    """The server's keys as its files have them. Raises ConfigError if they are wrong at first."""

    def __init__(self, args: ServerArgs, page_key: str = "") -> None:
        self._args, self._page_key = args, page_key
        self._read = self._last = self._stamps()
        self.keys = Keys.of(args, page_key=page_key)

    def have_changed(self) -> bool:
        """Whether `keys` have changed: a file was written or replaced, and is not still being
        written, since it was the same at the last check and after reading. A bad file changes
        nothing, and no key becomes an admin's because the others are gone."""
        before, self._last = self._last, self._stamps()
        if self._last == self._read or self._last != before:
            return False
        try:
            keys = Keys.of(self._args, self.keys.is_sole, self._page_key)
        except ConfigError as error:
            log.warning("the API keys stay as they were: %s", error)
            self._read = self._last
            return False
        if self._stamps() != self._last:
            return False
        self.keys, self._read = keys, self._last
        return True

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in _files(self._args)]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes with a file and its permissions; None if there is no file."""
    with suppress(OSError):
        found = path.stat()
        return found.st_ctime_ns, found.st_size, found.st_ino
    return None


def _files(args: ServerArgs) -> list[Path]:
    return [Path(path) for path in (args.api_key_file, args.admin_api_key_file) if path]


def _is_among(digest: bytes, digests: Sequence[bytes]) -> bool:
    return sum(hmac.compare_digest(digest, other) for other in digests) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _warn_of_others(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # reading it reports the error
    rights = (("read", stat.S_IROTH), ("change", stat.S_IWOTH))
    if found := " and ".join(right for right, bit in rights if mode & bit):
        told = f"{stat.S_IMODE(mode):o}"
        log.warning(
            "every user can %s the API keys in %s (mode %s): chmod 600 it", found, path, told
        )
