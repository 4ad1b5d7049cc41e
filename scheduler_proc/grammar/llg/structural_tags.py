"""Structural tags (SGLang's and xgrammar's JSON) as grammars for llguidance.

Called by the llguidance back end. Free text is one terminal that ends at the first trigger or end
string, so a trigger can only be the start of a tag; fixed strings and patterns are spelled
character by character, so that none hides another, and what has nothing else is one regular
expression.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import LarkBuilder, LLGrammar, free_until
from scheduler_proc.grammar.llg.ebnf import lark_of, regular_grammar
from scheduler_proc.grammar.llg.tag_formats import (
    AnyTextFormat,
    ConstStringFormat,
    Format,
    GrammarFormat,
    JsonSchemaFormat,
    OptionalFormat,
    OrFormat,
    PlusFormat,
    RegexFormat,
    RepeatFormat,
    SeparatedTagsFormat,
    SequenceFormat,
    StarFormat,
    TagFormat,
    TriggeredTagsFormat,
    read_tag,
    refuse_tag,
)
from scheduler_proc.grammar.llg.tag_pieces import (
    Piece,
    ends_itself,
    in_a_row,
    one_of_pieces,
    one_of_texts,
    pattern_of_texts,
    repeated,
    spelled,
)
from scheduler_proc.grammar.schema import prepare
from scheduler_proc.grammar.schema.plan import SchemaPlan
from srt.patterns.assertions import whole
from srt.patterns.lark import all_of, either, terminal
from srt.patterns.read_gbnf import is_gbnf
from srt.patterns.read_re import parse
from srt.patterns.tree import Literal, Node
from srt.patterns.write import FREE_TEXT, regex
from srt.wire.constraint import Whitespace

T = TypeVar("T")
MAX_NESTING = 32
MAX_TAGS = 1024


def tags_grammar(
    source: str, whitespace: Whitespace, closed: bool = False, after: str = "", opener: str = ""
) -> LLGrammar:
    """The grammar of a structural tag's JSON, whose schemas are `closed` unless they say otherwise,
    behind other text as in `free_until`. Raises GrammarError naming the place."""
    return _compiled(source, whitespace, closed, after, opener)[0]


class TagPart(NamedTuple):
    """A pattern, grammar or schema of a structural tag, and the plan of a schema. `is_lark`: it is
    the user's own text."""

    place: str
    grammar: LLGrammar
    plan: SchemaPlan | None = None
    is_lark: bool = False


def tag_parts(
    source: str, whitespace: Whitespace, closed: bool = False, after: str = "", opener: str = ""
) -> list[TagPart]:
    """The parts of a structural tag that `tags_grammar` takes."""
    return _compiled(source, whitespace, closed, after, opener)[1]


@lru_cache(maxsize=1)  # its parts are asked for after it
def _compiled(
    source: str, whitespace: Whitespace, closed: bool, after: str, opener: str
) -> tuple[LLGrammar, list[TagPart]]:
    given, place = read_tag(source)
    compiler = _TagCompiler(whitespace, closed)
    if opener and isinstance(given, TriggeredTagsFormat) and not given.at_least_one:
        made = compiler.builder.build(compiler.text_or_opener(given, place, opener, after))
        return made, [*compiler.parts.values()]
    start = compiler.compiled(given, place, [], 0)
    tree = start.tree
    made = compiler.builder.build(start.lark) if tree is None else LLGrammar.regex(regex(tree))
    return free_until(after, made, opener) if after else made, [*compiler.parts.values()]


class _TagCompiler:
    """Turns formats into Lark. One of the strings `stops` must follow a format. `parts` are the
    formats that have a grammar of their own, by their places."""

    def __init__(self, whitespace: Whitespace, closed: bool) -> None:
        self.builder = LarkBuilder()
        self.parts: dict[str, TagPart] = {}
        self._whitespace, self._closed = whitespace, closed
        self._num_tags = 0
        self._not_first = ""  # what free text between the outermost tags does not begin with

    def compiled(self, given: Format, place: str, stops: list[str], depth: int) -> Piece:
        """The Lark of any format. Raises GrammarError naming the place."""
        if depth > MAX_NESTING:
            raise refuse_tag(place, f"is nested deeper than {MAX_NESTING} formats")
        match given:
            case ConstStringFormat(value):
                return Piece(tree=Literal(value))
            case RegexFormat(pattern):
                return self._regular(_placed(lambda: whole(parse(pattern)), place), place)
            case GrammarFormat(source):
                tree = _placed(lambda: regular_grammar(source), place)
                if tree is not None:
                    return self._regular(tree, place)
                lark = _placed(lambda: lark_of(source), place)
                return self._embedded(TagPart(place, lark, is_lark=not is_gbnf(source)))
            case JsonSchemaFormat(schema):
                text, rule = bytes(schema).decode(), (self._whitespace, self._closed)
                prepared = _placed(lambda: prepare(text, *rule), place)
                made = _placed(lambda: prepared.grammar, place)
                return self._embedded(TagPart(place, made, prepared.plan))
            case AnyTextFormat(excluded):
                return Piece(self._terminal("TEXT", stops, stops, excluded, []), ends=bool(stops))
            case SequenceFormat(elements):
                return self._sequence(elements, place, stops, depth)
            case OrFormat(elements):
                return self._or(elements, place, stops, depth)
            case TagFormat():
                return self._tag("", given, place, depth)
            case TriggeredTagsFormat():
                return self._triggered_tags(given, place, stops, depth)
            case SeparatedTagsFormat():
                return self._separated(given, place, depth)
            case OptionalFormat(content):
                return self._repeated(content, place, (0, 1), depth)
            case StarFormat(content):
                return self._repeated(content, place, (0, None), depth)
            case PlusFormat(content):
                return self._repeated(content, place, (1, None), depth)
            case RepeatFormat(content, least, most):
                if 0 <= most < least:
                    raise refuse_tag(f"{place}.max", "must not be below min")
                return self._repeated(content, place, (least, None if most < 0 else most), depth)

    def closed(self, given: Format, place: str, stops: list[str], depth: int) -> Piece:
        """A format and, if there are any, one of the stops."""
        part = self.compiled(given, place, stops, depth)
        return part if part.ends or not stops else in_a_row([part, Piece(tree=one_of_texts(stops))])

    def _regular(self, tree: Node, place: str) -> Piece:
        self.parts[place] = TagPart(place, LLGrammar.regex(regex(tree)))
        return Piece(tree=tree)

    def _embedded(self, part: TagPart) -> Piece:
        self.parts[part.place] = part
        return Piece(self.builder.embed(part.grammar))

    def _terminal(
        self,
        prefix: str,
        ends: list[str],
        stops: list[str],
        excluded: list[str],
        never: list[str],
        not_first: str = "",
    ) -> str:
        """A terminal of free text up to and including the first of `stops`, which is one of `ends`;
        without stops nothing ends it. What is before the end has none of `excluded`, which may
        have a part in common with the end; the whole has none of `never`,
        and does not begin with `not_first`."""
        without = [f"{FREE_TEXT}{pattern_of_texts(stops)}[\\s\\S]+"] if stops else []
        without += [f"{FREE_TEXT}{pattern_of_texts(never)}{FREE_TEXT}"] if never else []
        without += [f"{regex(Literal(not_first))}{FREE_TEXT}"] if not_first else []
        if not excluded:
            return self.builder.rule(prefix, all_of([FREE_TEXT + pattern_of_texts(ends)], without))
        # An end may itself end with another one: then the text before either may be meant.
        options = [
            all_of(
                [FREE_TEXT + end],
                [f"{FREE_TEXT}{pattern_of_texts(excluded)}{FREE_TEXT}{end}", *without],
            )
            for end in ([pattern_of_texts([end]) for end in ends] or [""])
        ]
        return self.builder.rule(prefix, either(options) if len(options) > 1 else options[0])

    # ---- Combinations ----

    def _sequence(self, elements: list[Format], place: str, stops: list[str], depth: int) -> Piece:
        parts: list[Piece] = []
        taken = ""
        for i, element in enumerate(elements):
            at = f"{place}.elements[{i}]"
            last = i == len(elements) - 1
            following = stops if last else _leading(elements[i + 1])
            part = self.compiled(_without_lead(element, taken), at, following, depth + 1)
            taken = following[0] if part.ends and not last else ""
            if not following and not last and _is_free(element):
                raise refuse_tag(at, "free text must be last, or before a fixed string")
            parts.append(part)
        return in_a_row(parts)

    def _or(self, elements: list[Format], place: str, stops: list[str], depth: int) -> Piece:
        options = [
            self.closed(item, f"{place}.elements[{i}]", stops, depth + 1)
            for i, item in enumerate(elements)
        ]
        if any(isinstance(item, JsonSchemaFormat) for item in elements):
            # A terminal of JSON would hide a pattern that is spelled, but no terminal beside it.
            options = [
                Piece(terminal(regex(part.tree)))
                if part.tree is not None and isinstance(item, RegexFormat | GrammarFormat)
                else part
                for item, part in zip(elements, options, strict=True)
            ]
        return one_of_pieces(options)._replace(ends=bool(stops))

    def _repeated(
        self, content: Format, place: str, counts: tuple[int, int | None], depth: int
    ) -> Piece:
        at = f"{place}.content"
        if _is_free(content):
            raise refuse_tag(at, "free text cannot be repeated or optional")
        return repeated(self.compiled(content, at, [], depth + 1), *counts)

    # ---- Tags ----

    def _tag(self, taken: str, given: TagFormat, place: str, depth: int) -> Piece:
        """A tag whose beginning `taken` has already been read."""
        self._num_tags += 1
        if self._num_tags > MAX_TAGS:
            raise refuse_tag(place, f"more than {MAX_TAGS} tags")
        if not given.ends and _is_free(given.content):
            raise refuse_tag(f"{place}.end", "must not be empty after free text")
        inner = self.closed(given.content, f"{place}.content", given.ends, depth + 1)
        # Several times faster than spelled; without a beginning it could hide what begins alike.
        if given.begin and inner.tree is not None and ends_itself(inner.tree):
            inner = inner._replace(lark=terminal(regex(inner.tree)))
        begin = Piece(tree=Literal(given.begin[len(taken) :]))
        return in_a_row([begin, inner._replace(ends=False)])

    def _tags(self, tags: list[TagFormat], taken: str, place: str, depth: int) -> list[Piece]:
        """The tags that begin with `taken`, without that beginning."""
        return [
            self._tag(taken, tag, f"{place}.tags[{i}]", depth + 1)
            for i, tag in enumerate(tags)
            if tag.begin.startswith(taken)
        ]

    def text_or_opener(
        self, given: TriggeredTagsFormat, place: str, opener: str, after: str
    ) -> str:
        """The Lark of tags in free text, or behind `opener` and all text up to the first `after`.
        The free text does not begin with `opener`: the lexer would take that other text for it."""
        self._not_first = opener
        lead = f"{regex(Literal(opener))}{FREE_TEXT}{regex(Literal(after))}"
        lead = self.builder.rule("OPEN", all_of([lead], [f"{lead}[\\s\\S]+"]))
        return f"({lead})? ({self.compiled(given, place, [], 0).lark})"

    def _triggered_tags(
        self, given: TriggeredTagsFormat, place: str, stops: list[str], depth: int
    ) -> Piece:
        for stop in stops:
            if any(trigger in stop for trigger in given.triggers):
                reason = f"the end string {stop!r} contains a trigger"
                raise refuse_tag(f"{place}.triggers", reason)
        _check_triggered(given, place)
        triggered = self._triggered(given, stops, place, depth)
        tags = self._tags(given.tags, "", place, depth)
        whole = self.builder.rule("tag", one_of_pieces(tags).spelled())
        if given.at_least_one and given.stop_after_first:
            return Piece(whole)
        rest = given.excludes, given.triggers, "" if depth else self._not_first
        tail = self._terminal("TEXT", stops, stops, *rest)
        if given.stop_after_first:
            closing = f" {spelled(one_of_texts(stops))}" if stops else ""
            return Piece(f"({triggered}{closing} | {tail})", ends=bool(stops))
        first = f"{whole} " if given.at_least_one else ""
        return Piece(f"{first}({triggered})* {tail}", ends=bool(stops))

    def _triggered(
        self, given: TriggeredTagsFormat, stops: list[str], place: str, depth: int
    ) -> str:
        """Free text up to the first trigger, and the rest of a tag that begins with it."""
        options = []
        for trigger in dict.fromkeys(given.triggers):
            rests = self._tags(given.tags, trigger, place, depth)
            if rests:
                free = given.excludes, stops, "" if depth else self._not_first
                head = self._terminal("HEAD", [trigger], given.triggers, *free)
                options.append(f"{head} ({one_of_pieces(rests).spelled()})")
        return self.builder.rule("triggered", " | ".join(options))

    def _separated(self, given: SeparatedTagsFormat, place: str, depth: int) -> Piece:
        tag = one_of_pieces(self._tags(given.tags, "", place, depth))
        if tag.tree is None:
            tag = Piece(self.builder.rule("tag", tag.lark))
        whole = tag
        if not given.stop_after_first:
            more = in_a_row([Piece(tree=Literal(given.separator)), tag])
            whole = in_a_row([tag, repeated(more, 0, None)])
        return whole if given.at_least_one else repeated(whole, 0, 1)


def _placed(make: Callable[[], T], place: str) -> T:
    """What `make` returns; a GrammarError that it raises is made to name the place."""
    try:
        return make()
    except GrammarError as error:
        raise refuse_tag(place, str(error)) from None


def _check_triggered(given: TriggeredTagsFormat, place: str) -> None:
    """Check that each tag begins with a trigger that no other trigger keeps from completing."""
    triggers = given.triggers
    reachable = [t for t in triggers if not any(other in t[:-1] for other in triggers)]
    for i, tag in enumerate(given.tags):
        if not any(tag.begin.startswith(trigger) for trigger in reachable):
            reason = f"{tag.begin!r} starts with no trigger in reach"
            raise refuse_tag(f"{place}.tags[{i}].begin", reason)


def _leading(given: Format) -> list[str]:
    """The string that a format begins with, if that is fixed."""
    match given:
        case ConstStringFormat(text) | TagFormat(text) if text:
            return [text]
    return []


def _without_lead(given: Format, taken: str) -> Format:
    """A format without the fixed string at its beginning, which was already read."""
    match given:
        case ConstStringFormat(value):
            return replace(given, value=value[len(taken) :])
        case TagFormat(begin):
            return replace(given, begin=begin[len(taken) :])
    return given


def _is_free(given: Format) -> bool:
    """Whether a format can end in free text."""
    match given:
        case TriggeredTagsFormat():
            return not (given.at_least_one and given.stop_after_first)
        case SequenceFormat(elements):
            return _is_free(elements[-1])
        case OrFormat(elements):
            return any(map(_is_free, elements))
    return isinstance(given, AnyTextFormat)
