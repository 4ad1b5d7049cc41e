"""Takes the fields that need no action out of a decoded body, and decides about those that are
unknown.

A body's objects are passed once. Native routes refuse what they do not know. The OpenAI routes have
clients of many other servers, so there `Notes` decide: another server's name of a field is honoured
under ours, a hint is left out and named in the answer's header, and what constrains or bounds an
answer, or is nearly a name of ours, is refused.
"""

from typing import Any, NamedTuple

from srt.gateway.wire.kinds.classes import (
    FieldClass,
    Foreign,
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
from srt.gateway.wire.kinds.near import asks_for_nothing, nearest, rules_answers
from srt.gateway.wire.kinds.others import OF_MESSAGES
from srt.gateway.wire.kinds.tables import OURS
from srt.wire.errors import RequestError

MAX_OBJECTS = 4096  # in a list: to check more would hold up all other requests
MAX_IGNORED = 64  # names of one body
MAX_SHOWN_CHARS = 80  # of a name
_MAY_RULE = "which may be a rule for the answer: /docs has ours"


class Notes:
    """What is noted of one body. `ignored` are the names of what was left out, in their order and
    without the indices of lists; `renamed` are the fields that came under another name, with that.
    With `refuses`, what would be left out is refused, apart from hints that are always taken."""

    def __init__(self, refuses: bool = False) -> None:
        self._refuses = refuses
        # By kinds, by id, and their unknown names, which other items of a list have too: whether
        # the name rules answers.
        self._judged: dict[tuple[int, int, str], bool] = {}
        # By kinds and where they are: names that were left out, with the members that such a field
        # must not have.
        self._left: dict[tuple[int, Path, int], dict[str, frozenset[str]]] = {}
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
        if field.is_always_taken:
            self.ignore(path)
            return True
        return self.may_ignore(path)

    def may_ignore(self, path: Path) -> bool:
        """Leave out what is at `path`, unless such things are refused; whether it is left out."""
        if not self._refuses:
            self.ignore(path)
        return not self._refuses

    def take(
        self, kept: dict[str, Any], others: list[tuple[str, Any]], kind: Kind, path: Path
    ) -> None:
        """Decide about the fields `others` of an object of this kind at `path`, whose fields `kept`
        are those that are honoured."""
        left = self._left.setdefault((id(kind), path[:1], len(path)), {})
        for name, item in others:
            members = left.get(name)
            if members is None or (isinstance(item, dict) and item.keys() & members):
                members = self._take(kept, name, item, kind, path)
                if members is not None:
                    left[name] = members

    def _take(
        self, kept: dict[str, Any], name: str, item: Any, kind: Kind, path: Path
    ) -> frozenset[str] | None:
        """Decide about one field. Of one that is left out whatever its value, without some members,
        return the names of these; else None."""
        at, field = (*path, name), kind.others.get(name)
        if isinstance(field, Renamed):
            self._rename(kept, field, item, kind, at)
        elif isinstance(field, Members):
            self._take_members(kept, item, kind, at)
        elif isinstance(field, Refused):
            if not any(same(item, value) for value in field.neutral):
                raise _refused(field, at)
        elif isinstance(field, Hint):
            if not self.is_hint(field, item, at):
                raise RequestError(f" is not supported: {field.why}", at=_where(at))
            return None if any(same(item, value) for value in field.neutral) else frozenset()
        elif not self._take_unknown(name, item, kind, at):
            return _names_of(kind).ruling
        return None

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
            else:
                self._take(kept, name, value, kind, at)

    def _take_unknown(self, name: str, item: Any, kind: Kind, at: Path) -> bool:
        """Leave out an unknown field, and return whether its name rules answers. Raises
        RequestError if its value does so, or it has a member that is one of ours and would."""
        key = (id(kind), len(at), name)
        rules = self._judged.get(key)
        if rules is None:
            rules = self._judged[key] = self._judge(name, kind, at)
        if rules and not asks_for_nothing(name, item):
            raise _unknown(at, f", {_MAY_RULE}")
        if isinstance(item, dict):
            for member in sorted(item.keys() & _names_of(kind).ruling):
                if not asks_for_nothing(member, item[member]):
                    raise _unknown((*at, member), f", {_MAY_RULE}")
        self.ignore(at)
        return rules

    def _judge(self, name: str, kind: Kind, at: Path) -> bool:
        """Whether an unknown name rules answers. Raises RequestError for one of another route, and
        for one that is misspelt."""
        is_of_request = all(part in kind.others for part in at[:-1])
        if is_of_request and name in OURS:
            raise _unknown(at, f" of this route; {OURS[name]} has it")
        if self._refuses:
            raise _unknown(at)
        near = nearest(name, _names_of(kind).effective)
        if near is not None:
            field = kind.others.get(near)
            if isinstance(field, Refused):
                raise _refused(field, at)
            raise _unknown(at, f"; did you mean {near!r}?")
        return _rules(name, kind)


class _Names(NamedTuple):
    """Of a kind, the names whose fields have an `effect` (a misspelt one of another field loses
    nothing), and those that rule the answer: in an object that has no meaning here, too."""

    effective: tuple[str, ...]
    ruling: frozenset[str]


_names: dict[int, _Names] = {}  # by the kind's id


def _names_of(kind: Kind) -> _Names:
    if id(kind) not in _names:
        fields: dict[str, FieldClass | Foreign] = {**kind.fields, **kind.others}
        effective = [n for n, field in fields.items() if not isinstance(field, Ignored | Hint)]
        ours = {n: field.to for n, field in kind.others.items() if isinstance(field, Renamed)}
        ours |= {name: name for name in kind.honoured}
        ruling = frozenset(name for name, to in ours.items() if _rules(to, kind))
        _names[id(kind)] = _Names((*sorted(kind.honoured), *effective), ruling)
    return _names[id(kind)]


def _rules(name: str, kind: Kind) -> bool:
    """Whether a field of this name probably rules answers, as none of a message does."""
    return kind.others is not OF_MESSAGES and rules_answers(name)


def _refused(field: Refused, path: Path) -> RequestError:
    return RequestError(f" is not supported: use {field.instead}", at=_where(path))


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
    translated = values if checks and values else None
    for name, item in value.items():
        if item is None and name not in with_null:
            continue
        if name not in honoured:
            if name in fields and needs_no_action(item, fields[name], (*path, name), notes):
                continue
            if checks:
                others.append((name, item))
                continue
        nested = nested_kinds.get(name)
        kept[name] = honoured_only(item, nested, (*path, name), notes) if nested else item
        if translated is not None and name in translated:
            kept[name] = meant(kept[name], values[name])
    if others and notes is not None:  # after the honoured ones, whose other names they may be
        notes.take(kept, others, kind, path)
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
