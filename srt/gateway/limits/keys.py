"""The server's API keys: who may call, and who may do what concerns all callers.

Keys are kept as digests, compared in constant time, whichever of them is given, and never logged.
The gateway's actor checks from time to time whether their files have changed.
"""

import hmac
import logging
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from srt.args import ServerArgs, key_files_of, key_lines_of
from srt.callers.changed_files import ChangedFiles
from srt.callers.names import key_digest, name_of_address, name_of_key
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)


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
    watched. `names` are those of callers by key, where they have some; keys with one name are one
    caller's."""

    def __init__(
        self,
        keys: Sequence[str] = (),
        admin_keys: Sequence[str] = (),
        share_cache: bool = False,
        may_be_sole: bool = True,
        page_key: str = "",
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.is_sole = may_be_sole and len(keys) == 1 and not admin_keys
        self._admins = [key_digest(key) for key in (keys if self.is_sole else admin_keys)]
        self._all = [*map(key_digest, keys), *self._admins]
        given = (names or {}).items()
        self._names = {name_of_key(key_digest(key)): name for key, name in given}
        self._share_cache = share_cache
        self._page = [key_digest(page_key)] if page_key and not self._admins else []

    @property
    def has_admins(self) -> bool:
        return bool(self._admins)

    @property
    def is_open(self) -> bool:
        """Whether everybody may call."""
        return not self._all

    def is_of_page(self, given: str) -> bool:
        """Whether this is the key that the server has made for its page."""
        return _is_among(key_digest(given), self._page)

    @classmethod
    def of(cls, args: ServerArgs, may_be_sole: bool = True, page_key: str = "") -> "Keys":
        """The keys of the command line and of the files. Raises ConfigError."""
        for path in key_files_of(args):
            _warn_of_others(Path(path))
        lines = key_lines_of(args)
        return cls(
            [line.key for line in lines if not line.is_admin],
            [line.key for line in lines if line.is_admin],
            args.share_cache_between_keys,
            may_be_sole,
            page_key,
            {line.key: line.name for line in lines},
        )

    def caller(self, given: str, address: str) -> Caller | None:
        """Who calls from `address` with the key `given`; None if the server has no such key."""
        if not self._all:
            return Caller(name_of_address(address))
        digest = key_digest(given)
        if not _is_among(digest, self._all):
            return None
        is_admin = _is_among(digest, self._admins)
        name = name_of_key(digest)
        own_cache = not self._share_cache
        return Caller(self._names.get(name, name), is_admin, own_cache, has_key=True)


class KeyFiles:
    """The server's keys as its files have them. Raises ConfigError if they are wrong at first."""

    def __init__(self, args: ServerArgs, page_key: str = "") -> None:
        self._args, self._page_key = args, page_key
        self._files = ChangedFiles(key_files_of(args))
        self.keys = Keys.of(args, page_key=page_key)

    def have_changed(self) -> bool:
        """Whether `keys` have changed. A bad file changes nothing, and no key becomes an admin's
        because the others are gone."""
        try:
            keys = self._files.take(self._read)
        except ConfigError as error:
            log.warning("the API keys stay as they were: %s", error)
            return False
        self.keys = keys or self.keys
        return keys is not None

    def _read(self) -> Keys:
        return Keys.of(self._args, self.keys.is_sole, self._page_key)


def _is_among(digest: bytes, digests: Sequence[bytes]) -> bool:
    return sum(hmac.compare_digest(digest, other) for other in digests) > 0


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
