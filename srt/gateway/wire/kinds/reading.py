"""Takes the fields that need no action out of a decoded body, and decides about those that are
unknown.

A body's objects are passed once. Native routes refuse what they do not know. The OpenAI routes have
clients of many other servers, so there `Notes` decide: another server's name of a field is honoured
under ours, a hint is left out and named in the answer's header, and what constrains or bounds an
answer, or is nearly a name of ours, is refused.
"""

from collections.abc import Collection
from typing import Any

from srt.gateway.wire.kinds.classes import (
    FieldClass,
    Hint,
    Ignored,
    Kind,
    Meanings,
    Members,
    Path,
    Refused,
    Renamed,
    same,
)
from srt.gateway.wire.kinds.near import nearest, rules_answers
from srt.gateway.wire.kinds.tables import OURS
from srt.wire.errors import RequestError

MAX_OBJECTS = 4096  # in a list: to check more would hold up all other requests
MAX_IGNORED = 64  # names of one body
MAX_SHOWN_CHARS = 80  # of a name


class Notes:
    """What is noted of one body. `ignored` are the names of what was left out, in their order and
    without the indices of lists; `renamed` are the fields that came under another name, with that.
    With `refuses`, what would be left out is refused."""

    def __init__(self, refuses: bool = False) -> None:
        self._refuses = refuses
        # Kinds, by id, and their unknown names to leave out, which other items of a list have too.
        self._judged: set[tuple[int, int, str]] = set()
        self.ignored: dict[str, None] = {}
        self.renamed: dict[str, str] = {}

    def ignore(self, path: Path) -> None:
        """Leave out what is at `path`. Raises RequestError if there is too much of it."""
        self.ignored["".join(_part(part) for part in path).removeprefix(".")] = None
        if len(self.ignored) > MAX_IGNORED:
            raise RequestError(f"the body has more than {MAX_IGNORED} unknown fields")

    def is_hint(self, field: Hint, item: Any, path: Path) -> bool:
        """Whether a hint is left out; it is named unless it asks for what is done anyway."""
        if any(same(item, value) for value in field.neutral):
            return True
        if not self._refuses:
            self.ignore(path)
        return not self._refuses

    def take(self, kept: dict[str, Any], name: str, item: Any, kind: Kind, path: Path) -> None:
        """Decide about the field `name` of an object of this kind at `path`, whose fields `kept`
        are those that are honoured."""
        known = (id(kind), len(path), name)
        if known in self._judged:
            return
        at, field = (*path, name), kind.others.get(name)
        if isinstance(field, Renamed):
            self._rename(kept, field, item, kind, at)
        elif isinstance(field, Members):
            self._take_members(kept, item, kind, at)
        elif isinstance(field, Refused):
            raise RequestError(f" is not supported: use {field.instead}", at=_where(at))
        elif isinstance(field, Hint):
            if not self.is_hint(field, item, at):
                raise RequestError(f" is not supported: {field.why}", at=_where(at))
        else:
            self._take_unknown(name, kind, at)
            self._judged.add(known)

    def _rename(
        self, kept: dict[str, Any], field: Renamed, item: Any, kind: Kind, at: Path
    ) -> None:
        value = meant(item, field.meant)
        if value is item:
            value = meant(item, kind.meant.get(field.to, ()))
        where = _where(at)
        if field.to in kept and not same(kept[field.to], value):
            other = self.renamed.get(field.to, field.to)
            raise RequestError(f" and {other} are one field: give one", at=where)
        kept[field.to] = value
        self.renamed.setdefault(field.to, where)

    def _take_members(self, kept: dict[str, Any], item: Any, kind: Kind, at: Path) -> None:
        """Take the members of an object as fields of the request."""
        if not isinstance(item, dict):
            raise RequestError(" must be an object", at=_where(at))
        for name, value in item.items():
            if value is None:
                continue
            path = (*at, name)
            if name in kind.honoured:
                nested = kind.nested.get(name)
                read = honoured_only(value, nested, path, self) if nested else value
                self._rename(kept, Renamed(name), read, kind, path)
            elif name in kind.fields:
                needs_no_action(value, kind.fields[name], path, self)
            elif not isinstance(kind.others.get(name), Members):
                self.take(kept, name, value, kind, at)
            else:
                self.ignore(path)

    def _take_unknown(self, name: str, kind: Kind, at: Path) -> None:
        """Raise RequestError for a name that must not be left out."""
        is_ours = name in OURS and len(at) <= 2  # of a request, or one of its options
        if is_ours or self._refuses:
            raise _unknown(at)
        near = nearest(name, (*kind.honoured, *kind.fields, *kind.others))
        if near is not None:
            raise _unknown(at, f"; did you mean {near!r}?")
        if rules_answers(name):
            raise _unknown(at, ", which may be a rule for the answer: /docs has ours")
        self.ignore(at)


def _unknown(path: Path, reason: str = "") -> RequestError:
    where = _where(path)
    if len(where) > MAX_SHOWN_CHARS:
        where = f"{where[:MAX_SHOWN_CHARS]} ..."
    return RequestError(f"unknown field {where!r}{reason}", param=where)


def honoured_only(value: Any, kind: Kind, path: Path = (), notes: Notes | None = None) -> Any:
    """`value` (decoded JSON) without nulls that mean a default, and fields that need no action.

    A list's objects are taken one by one; no kind has lists in lists, so the depth of this is that
    of the kinds, whatever the client sent. Raises RequestError, naming the field with its path,
    when an unsupported field has a value that asks for something, or a list is too long.

    Unknown fields are left to the struct that the value becomes, or, where the kind says what is
    honoured, to `notes`.
    """
    if isinstance(value, list):
        if len(value) > MAX_OBJECTS:
            where = _where(path)
            reason = f"{where or 'the body'} takes at most {MAX_OBJECTS} items"
            raise RequestError(reason, param=where or None)
        return [
            honoured_only(item, kind, (*path, i), notes) if isinstance(item, dict) else item
            for i, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    others: list[tuple[str, Any]] = []
    fields, nested_kinds, with_null, honoured, _, values = kind
    checks = notes is not None and len(honoured) > 0
    translated: Collection[str] = () if notes is None else values
    for name, item in value.items():
        if item is None and name not in with_null:
            continue
        if name in fields and needs_no_action(item, fields[name], (*path, name), notes):
            continue
        if checks and name not in honoured:
            others.append((name, item))
            continue
        nested = nested_kinds.get(name)
        kept[name] = honoured_only(item, nested, (*path, name), notes) if nested else item
        if name in translated:
            kept[name] = meant(item, values[name])
    if notes is not None:
        for name, item in others:  # after those that are honoured, whose other names they may be
            notes.take(kept, name, item, kind, path)
    return kept


def meant(item: Any, meanings: Meanings) -> Any:
    """What the value of another server means here."""
    return next((ours for theirs, ours in meanings if same(item, theirs)), item)


def needs_no_action(item: Any, field: FieldClass, path: Path, notes: Notes | None = None) -> bool:
    """Whether a field may be left out. Raises RequestError if it asks for something."""
    if isinstance(field, Ignored) or any(same(item, value) for value in field.neutral):
        return True
    if isinstance(field, Hint) and notes is not None and notes.is_hint(field, item, path):
        return True
    raise RequestError(f" is not supported with this value: {field.why}", at=_where(path))


def _where(path: Path) -> str:
    """As in `messages[3].content`."""
    names = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(names).removeprefix(".")


def _part(part: str | int) -> str:
    return "[]" if isinstance(part, int) else f".{part}"
