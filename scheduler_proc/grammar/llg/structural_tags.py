"""Structural tags (SGLang's and xgrammar's JSON) as grammars for llguidance.

Called by the llguidance back end. Free text is one terminal that ends at the first trigger or end
string, so a trigger can only be the start of a tag; fixed strings and patterns are spelled
character by character, so that none hides another, and what has nothing else is one regular
expression. Every field is read or refused by its place.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import FREE_TEXT, LarkBuilder, LLGrammar, rust_literal
from scheduler_proc.grammar.llg.ebnf import lark_of, regular_grammar
from scheduler_proc.grammar.llg.regular import ends_itself, regular_of, spelled, terminal
from scheduler_proc.grammar.schema import prepare
from scheduler_proc.grammar.schema.pattern import (
    EMPTY,
    Choice,
    Node,
    Repeat,
    Sequence,
    literal,
    pattern_of,
)
from srt.wire.constraint import Whitespace

MAX_SOURCE_CHARS = 2**20
MAX_NESTING = 32
MAX_TAGS = 1024
MAX_REPEATS = 10_000

Fields = dict[str, Any]


class Part(NamedTuple):
    """A piece of Lark; a regular one has a tree, and Lark only if that is better than the tree's,
    character by character. With `ends`, it takes in the string that stands behind it."""

    lark: str = ""
    ends: bool = False
    tree: Node | None = None

    def spelled(self) -> str:
        """It as Lark."""
        return self.lark if self.tree is None or self.lark else spelled(self.tree)


def tags_grammar(source: str, whitespace: Whitespace) -> LLGrammar:
    """The grammar of a structural tag's JSON. Raises GrammarError naming the place."""
    if len(source) > MAX_SOURCE_CHARS:
        raise GrammarError(f"the structural tag is longer than {MAX_SOURCE_CHARS} characters")
    try:
        given = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the structural tag is not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise _refuse("", "must be an object")
    compiler = _TagCompiler(whitespace)
    if "format" in given:
        _check_fields(given, "", {"type", "format"})
        _check_type(given)
        start = compiler.part(given["format"], "/format", [], 0)
    else:
        _check_fields(given, "", {"type", "structures", "triggers"})
        _check_type(given)
        start = compiler.part(_from_structures(given), "", [], 0)
    if start.tree is not None:
        return LLGrammar.regex(pattern_of(start.tree).regex)
    return compiler.builder.build(start.lark)


def _check_type(given: Fields) -> None:
    if given.get("type", "structural_tag") != "structural_tag":
        raise _refuse("/type", "must be 'structural_tag'")


def _from_structures(given: Fields) -> Fields:
    """The older form: a list of {begin, schema, end}, and triggers."""
    tags = []
    for i, item in enumerate(_list(given, "structures", "")):
        place = f"/structures/{i}"
        if not isinstance(item, dict):
            raise _refuse(place, "must be an object")
        _check_fields(item, place, {"begin", "schema", "end"})
        schema = item.get("schema", {})
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise _refuse(f"{place}/schema", f"is not valid JSON: {error}") from None
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"begin": item.get("begin"), "content": content, "end": item.get("end")})
    return {"type": "triggered_tags", "triggers": given.get("triggers"), "tags": tags}


class _TagCompiler:
    """Turns formats into Lark. `stops` are the strings of which one must follow a format."""

    def __init__(self, whitespace: Whitespace) -> None:
        self.builder = LarkBuilder()
        self._whitespace = whitespace
        self._num_tags = 0
        self._formats: dict[str, Callable[[Fields, str, list[str], int], Part]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
            "optional": self._optional,
            "star": self._star,
            "plus": self._plus,
            "repeat": self._repeat,
        }

    def part(self, given: Any, place: str, stops: list[str], depth: int) -> Part:
        """The Lark of any format."""
        if not isinstance(given, dict):
            raise _refuse(place, "must be an object")
        if depth > MAX_NESTING:
            raise _refuse(place, f"is nested deeper than {MAX_NESTING} formats")
        compiled = self._formats.get(str(given.get("type")))
        if compiled is None:
            raise _refuse(f"{place}/type", f"{given.get('type')!r} is not supported")
        return compiled(given, place, stops, depth)

    def closed(self, given: Any, place: str, stops: list[str], depth: int) -> Part:
        """A format and, if there are any, one of the stops."""
        part = self.part(given, place, stops, depth)
        return part if part.ends or not stops else _in_a_row([part, Part(tree=_one_of(stops))])

    # ---- Leaves ----

    def _const_string(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        _check_fields(given, place, {"type", "value"})
        return Part(tree=literal(_string(given, "value", place)))

    def _json_schema(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        _check_fields(given, place, {"type", "json_schema", "style"})
        if given.get("style", "json") != "json":
            raise _refuse(f"{place}/style", f"{given['style']!r} is not supported")
        if "json_schema" not in given:
            raise _refuse(place, "json_schema is missing")
        source = json.dumps(given["json_schema"])
        return Part(self._embedded(lambda: prepare(source, self._whitespace).grammar, place))

    def _regex(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        _check_fields(given, place, {"type", "pattern"})
        pattern = _string(given, "pattern", place)
        try:
            return Part(tree=regular_of(pattern))
        except GrammarError as error:
            raise _refuse(place, str(error)) from None

    def _grammar(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        _check_fields(given, place, {"type", "grammar"})
        source = _string(given, "grammar", place)
        try:
            tree = regular_grammar(source)
        except GrammarError as error:
            raise _refuse(place, str(error)) from None
        if tree is not None:
            return Part(tree=tree)
        return Part(self._embedded(lambda: lark_of(source), place))

    def _embedded(self, make: Callable[[], LLGrammar], place: str) -> str:
        try:
            return self.builder.embed(make())
        except GrammarError as error:
            raise _refuse(place, str(error)) from None

    # ---- Free text ----

    def _any_text(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        _check_fields(given, place, {"type", "excludes"})
        excluded = _strings(given, "excludes", place)
        return Part(self._text(stops, excluded), ends=bool(stops))

    def _text(self, stops: list[str], excluded: list[str]) -> str:
        """Free text without `excluded`, up to and with the first of `stops` if there are any."""
        conditions = [f"{FREE_TEXT}{_any_of(stops)}" if stops else FREE_TEXT]
        if stops:
            conditions.append(f"~{FREE_TEXT}{_any_of(stops)}[\\s\\S]+")
        if excluded:
            conditions.append(f"~{FREE_TEXT}{_any_of(excluded)}{FREE_TEXT}")
        return self.builder.terminal("TEXT", conditions)

    # ---- Combinations ----

    def _sequence(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        _check_fields(given, place, {"type", "elements"})
        elements = _list(given, "elements", place)
        parts, taken = [], ""
        for i, element in enumerate(elements):
            at = f"{place}/elements/{i}"
            last = i == len(elements) - 1
            following = stops if last else _leading(elements[i + 1])
            part = self.part(_without_lead(element, taken), at, following, depth + 1)
            taken = following[0] if part.ends and not last else ""
            if not following and not last and _is_free(element):
                raise _refuse(at, "free text must be last, or before a fixed string")
            parts.append(part)
        return _in_a_row(parts)

    def _or(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        _check_fields(given, place, {"type", "elements"})
        elements = _list(given, "elements", place)
        options = [
            self.closed(item, f"{place}/elements/{i}", stops, depth + 1)
            for i, item in enumerate(elements)
        ]
        if any(_get(item, "type") == "json_schema" for item in elements):
            # A terminal of JSON would hide a pattern that is spelled, but no terminal beside it.
            options = [
                Part(terminal(part.tree))
                if part.tree is not None and _get(item, "type") in ("regex", "grammar")
                else part
                for item, part in zip(elements, options, strict=True)
            ]
        return _either(options)._replace(ends=bool(stops))

    def _tag(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        return self._tag_after("", given, place, depth)

    def _tag_after(self, taken: str, given: Any, place: str, depth: int) -> Part:
        """A tag of which the string `taken` has already been read."""
        self._num_tags += 1
        if self._num_tags > MAX_TAGS:
            raise _refuse(place, f"more than {MAX_TAGS} tags")
        if not isinstance(given, dict):
            raise _refuse(place, "must be an object")
        _check_fields(given, place, {"type", "begin", "content", "end"})
        if given.get("type", "tag") != "tag":
            raise _refuse(f"{place}/type", "must be 'tag'")
        begin = _string(given, "begin", place)
        ends = _strings(given, "end", place) if isinstance(given.get("end"), list) else []
        ends = ends or [_string(given, "end", place)]
        content = given.get("content")
        if not all(ends) and _is_free(content):
            raise _refuse(f"{place}/end", "must not be empty behind free text")
        stops = [] if ends == [""] else ends
        inner = self.closed(content, f"{place}/content", stops, depth + 1)
        # Several times faster than spelled; without a beginning it could hide what begins alike.
        if begin and inner.tree is not None and ends_itself(inner.tree):
            inner = inner._replace(lark=terminal(inner.tree))
        return _in_a_row([Part(tree=literal(begin[len(taken) :])), inner._replace(ends=False)])

    def _tag_list(self, given: Fields, place: str) -> list[Any]:
        tags = _list(given, "tags", place)
        for i, tag in enumerate(tags):
            if not isinstance(tag, dict):
                raise _refuse(f"{place}/tags/{i}", "must be an object")
        return tags

    def _triggered_tags(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        fields = {"type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"}
        _check_fields(given, place, fields)
        triggers, tags = _strings(given, "triggers", place), self._tag_list(given, place)
        excluded = _strings(given, "excludes", place)
        if not triggers or not all(triggers):
            raise _refuse(f"{place}/triggers", "must be strings that are not empty")
        for stop in stops:
            if any(trigger in stop for trigger in triggers):
                raise _refuse(f"{place}/triggers", f"the end string {stop!r} contains a trigger")
        _check_triggered(tags, triggers, place)
        triggered = self._triggered(tags, triggers, excluded + stops, place, depth)
        whole = self.builder.rule("tag", _either(self._tags(tags, "", place, depth)).spelled())
        at_least_one = _flag(given, "at_least_one", place)
        if _flag(given, "stop_after_first", place):
            if at_least_one:
                return Part(whole)
            closing = f" {spelled(_one_of(stops))}" if stops else ""
            tail = self._text(stops, triggers + excluded)
            return Part(f"({triggered}{closing} | {tail})", ends=bool(stops))
        tail = self._text(stops, triggers + excluded)
        first = f"{whole} " if at_least_one else ""
        return Part(f"{first}({triggered})* {tail}", ends=bool(stops))

    def _triggered(
        self, tags: list[Any], triggers: list[str], excluded: list[str], place: str, depth: int
    ) -> str:
        """Free text up to the first trigger, and the rest of a tag that begins with it."""
        options = []
        for trigger in dict.fromkeys(triggers):
            conditions = [
                f"{FREE_TEXT}{rust_literal(trigger)}",
                f"~{FREE_TEXT}{_any_of(triggers)}[\\s\\S]+",
            ]
            if excluded:
                conditions.append(f"~{FREE_TEXT}{_any_of(excluded)}{FREE_TEXT}")
            rests = self._tags(tags, trigger, place, depth)
            if rests:
                head = self.builder.terminal("HEAD", conditions)
                options.append(f"{head} ({_either(rests).spelled()})")
        return self.builder.rule("triggered", " | ".join(options))

    def _tags(self, tags: list[Any], taken: str, place: str, depth: int) -> list[Part]:
        """Those of the tags that begin with `taken`, less that."""
        return [
            self._tag_after(taken, tag, f"{place}/tags/{i}", depth + 1)
            for i, tag in enumerate(tags)
            if _string(tag, "begin", f"{place}/tags/{i}").startswith(taken)
        ]

    def _tags_with_separator(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        fields = {"type", "tags", "separator", "at_least_one", "stop_after_first"}
        _check_fields(given, place, fields)
        separator = Part(tree=literal(_string(given, "separator", place)))
        options = self._tags(self._tag_list(given, place), "", place, depth)
        if not options:
            raise _refuse(f"{place}/tags", "must not be empty")
        tag = _either(options)
        if tag.tree is None:
            tag = Part(self.builder.rule("tag", tag.lark))
        more = [] if _flag(given, "stop_after_first", place) else [_in_a_row([separator, tag])]
        whole = _in_a_row([tag, *(_times(part, 0, None) for part in more)])
        return whole if _flag(given, "at_least_one", place) else _times(whole, 0, 1)

    def _optional(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        return self._repeated(given, place, (0, 1), depth)

    def _star(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        return self._repeated(given, place, (0, None), depth)

    def _plus(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        return self._repeated(given, place, (1, None), depth)

    def _repeat(self, given: Fields, place: str, stops: list[str], depth: int) -> Part:
        least, most = given.get("min"), given.get("max")
        if not _is_count(least) or not (most == -1 or _is_count(most)):
            raise _refuse(place, f"min and max must be integers up to {MAX_REPEATS}; max may be -1")
        if most != -1 and int(str(most)) < int(str(least)):
            raise _refuse(f"{place}/max", "must not be below min")
        counts = (int(str(least)), None if most == -1 else int(str(most)))
        return self._repeated(given, place, counts, depth, {"min", "max"})

    def _repeated(
        self,
        given: Fields,
        place: str,
        counts: tuple[int, int | None],
        depth: int,
        more_fields: set[str] = frozenset(),  # type: ignore[assignment]
    ) -> Part:
        _check_fields(given, place, {"type", "content", *more_fields})
        if _is_free(given.get("content")):
            raise _refuse(f"{place}/content", "free text cannot be repeated or optional")
        inner = self.part(given.get("content"), f"{place}/content", [], depth + 1)
        return _times(inner, *counts)


# ---- Reading ---------------------------------------------------------------------------------


def _refuse(place: str, reason: str) -> GrammarError:
    return GrammarError(f"structural tag at {place or '/'}: {reason}")


def _check_fields(given: Fields, place: str, known: set[str]) -> None:
    for name in given:
        if name not in known:
            raise _refuse(f"{place}/{name}", "this field is not supported")


def _string(given: Fields, name: str, place: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise _refuse(f"{place}/{name}", "must be a string")
    return value


def _list(given: Fields, name: str, place: str) -> list[Any]:
    value = given.get(name)
    if not isinstance(value, list) or not value:
        raise _refuse(f"{place}/{name}", "must be an array, not empty")
    return value


def _strings(given: Fields, name: str, place: str) -> list[str]:
    value = given.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise _refuse(f"{place}/{name}", "must be an array of strings that are not empty")
    return value


def _flag(given: Fields, name: str, place: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise _refuse(f"{place}/{name}", "must be a boolean")
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REPEATS


def _check_triggered(tags: list[Any], triggers: list[str], place: str) -> None:
    """Every tag begins with a trigger that no other trigger keeps from being completed."""
    reachable = [t for t in triggers if not any(other in t[:-1] for other in triggers)]
    for i, tag in enumerate(tags):
        begin = _string(tag, "begin", f"{place}/tags/{i}")
        if not any(begin.startswith(trigger) for trigger in reachable):
            raise _refuse(f"{place}/tags/{i}/begin", f"{begin!r} starts with no trigger in reach")


def _leading(given: Any) -> list[str]:
    """The string that a format begins with, if that is fixed."""
    name = {"const_string": "value", "tag": "begin"}.get(str(_get(given, "type")))
    value = _get(given, name) if name else None
    return [value] if isinstance(value, str) and value else []


def _without_lead(given: Any, taken: str) -> Any:
    """A format less the fixed string at its beginning, which was already read."""
    if not taken:
        return given
    name = "value" if given["type"] == "const_string" else "begin"
    return {**given, name: given[name][len(taken) :]}


def _is_free(given: Any) -> bool:
    """Whether a format can end in free text."""
    kind = _get(given, "type")
    if kind == "triggered_tags":
        return not (_get(given, "at_least_one") is True and _get(given, "stop_after_first") is True)
    if kind in ("sequence", "or"):
        elements = _get(given, "elements")
        ends = elements if isinstance(elements, list) else []
        return any(_is_free(item) for item in (ends[-1:] if kind == "sequence" else ends))
    return bool(kind == "any_text")


def _get(given: Any, name: str | None) -> Any:
    return given.get(name) if isinstance(given, dict) and name else None


# ---- Combining -------------------------------------------------------------------------------


def _in_a_row(parts: list[Part]) -> Part:
    trees = [part.tree for part in parts if part.tree is not None]
    tree = Sequence(tuple(trees)) if len(trees) == len(parts) else None
    return Part(_lark(" ", parts), parts[-1].ends, tree)


def _either(parts: list[Part]) -> Part:
    trees = [part.tree for part in parts if part.tree is not None]
    tree = Choice(tuple(trees)) if len(trees) == len(parts) else None
    lark = _lark(" | ", parts)
    return Part(f"({lark})" if lark else "", tree=tree)


def _times(part: Part, least: int, most: int | None) -> Part:
    if most == 0:
        return Part(tree=EMPTY)
    tree = None if part.tree is None else Repeat(part.tree, least, most)
    lark = f"({part.lark}){{{least},{'' if most is None else most}}}" if part.lark else ""
    return Part(lark, tree=tree)


def _lark(separator: str, parts: list[Part]) -> str:
    """The parts as Lark, if some have any."""
    return separator.join(part.spelled() for part in parts) if any(p.lark for p in parts) else ""


def _one_of(texts: list[str]) -> Node:
    return Choice(tuple(map(literal, texts)))


def _any_of(texts: list[str]) -> str:
    return "(?:" + "|".join(rust_literal(text) for text in texts) + ")"
