"""Print a plan as rules of llguidance's Lark: what its JSON Schema cannot say.

Called where `emit` gives up. Scalars are still its JSON Schema; arrays and objects are rules, of
which some count or remember in a parameter (64 bits, materialised as the parser goes). The
language is that of the other printers, whitespace and order of properties included.
"""

import json

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import LLGrammar
from scheduler_proc.grammar.schema.document import refuse
from scheduler_proc.grammar.schema.numbers import number_terminal, takes_regex
from scheduler_proc.grammar.schema.pattern import one_of
from scheduler_proc.grammar.schema.plan import SchemaPlan
from scheduler_proc.grammar.schema.printing.emit import scalar_schema
from scheduler_proc.grammar.schema.shapes import (
    ANYTHING,
    Arrays,
    Distinct,
    ItemPaths,
    Need,
    Numbers,
    Objects,
    Shape,
    Strings,
    meet_strings,
)
from scheduler_proc.grammar.schema.terminal import is_never_met, string_terminal, takes_terminal
from srt.patterns.lark import EMPTY, LarkWriter, either, terminal, times
from srt.patterns.write import NO_CHARACTER
from srt.wire.constraint import Whitespace

_ALL = Strings()
_MAX_PARTS = 500
_NEVER = terminal(NO_CHARACTER)  # an empty body would be the empty string


def printed_rules(plan: SchemaPlan, whitespace: Whitespace) -> LLGrammar:
    """The grammar of a plan. Raises GrammarError for what no grammar can say."""
    return _Rules(plan, whitespace).grammar()


class _Rules:
    def __init__(self, plan: SchemaPlan, whitespace: Whitespace) -> None:
        self._plan = plan
        self._gap = " gap " if whitespace == "free" else " "
        self._comma = f'{self._gap}","{self._gap}'
        self._options = {"whitespace_flexible": whitespace == "free"}
        self._names: dict[Need, str] = {}
        self._pending: list[Need] = []
        self._writer = LarkWriter("T")
        self._rules = self._writer.rules
        self._rules["gap"] = terminal(r"[ \t\n\r]*")
        self._known: dict[str, str] = {}  # rules by their bodies

    def grammar(self) -> LLGrammar:
        start = self._need(self._plan.root)
        while self._pending:
            need = self._pending.pop()
            self._rules[self._names[need]] = self._union(self._plan.shapes[need])
        return LLGrammar.lark(self._writer.text(start))

    def _need(self, need: Need) -> str:
        if need not in self._names:
            self._names[need] = f"n{len(self._names)}"
            if need == ANYTHING:
                self._rules[self._names[need]] = self._json({})
            else:
                self._pending.append(need)
        return self._names[need]

    def _json(self, schema: dict[str, object]) -> str:
        return "%json " + json.dumps({**schema, "x-guidance": self._options})

    def _rule(self, body: str, parameter: str = "") -> str:
        """The name of a rule: a fresh one if its body is empty, to be given later."""
        fresh = f"r{len(self._rules)}"
        name = self._known.setdefault(body + parameter, fresh) if body else fresh
        self._rules[name + parameter] = body
        return name

    def _union(self, shapes: list[Shape]) -> str:
        scalars, found = [], []
        for shape in shapes:
            match shape:
                case Arrays():
                    found.append(self._array(shape))
                case ItemPaths():
                    found.append(self._paths(shape))
                case Distinct():
                    found.append(self._distinct(shape))
                case Objects():
                    found.append(self._object(shape))
                case Strings() if takes_terminal(shape):
                    found.append(self._writer.terminal(string_terminal(shape)))
                case Numbers() if takes_regex(shape):
                    found.append(self._writer.terminal(number_terminal(shape)))
                case _:
                    scalars.append(scalar_schema(shape))
        if scalars:
            found.insert(0, self._json(scalars[0] if len(scalars) == 1 else {"anyOf": scalars}))
        return " | ".join(found) or _NEVER

    def _in(self, brackets: str, inner: str) -> str:
        return f'"{brackets[0]}"{self._gap}{inner}{self._gap}"{brackets[1]}"'

    # ---- Arrays ----

    def _array(self, shape: Arrays) -> str:
        prefix, comma = shape.prefix[: shape.most], self._comma
        known = len(prefix)
        _check_length(known)
        most = None if shape.most is None else shape.most - known
        tail, least = "", max(0, shape.least - known)
        if most is None or most > 0:
            item, high = self._need(shape.rest), None if most is None else most - (not known)
            low = least if known else max(0, least - 1)
            tail = "" if high == 0 else times(f"{comma}{item}", low, high)
            if not known:
                tail = f"{item}{tail}" if least else f"({item}{tail})?"
        for i in range(known - 1, -1, -1):
            item = f"{comma if i else ''}{self._need(prefix[i])} {tail}"
            tail = self._rule(item if i < shape.least else f"({item})?")
        return self._in("[]", tail)

    def _paths(self, shape: ItemPaths) -> str:
        """One rule for each state, for the arrays that lead there: left recursion is cheap in long
        arrays."""
        leading = {state for _, _, state in shape.arcs}
        names = {state: self._rule("") for state in sorted(leading)}
        for state, name in names.items():
            options = []
            for before, need, after in shape.arcs:
                item = self._need(need)
                options += [item] if after == state and before == 0 else []
                if after == state and before in names:
                    options.append(f"{names[before]}{self._comma}{item}")
            self._rules[name] = " | ".join(options)
        inner = [names[state] for state in sorted(shape.accepting & leading)]
        inner += [EMPTY] if 0 in shape.accepting else []
        return self._in("[]", either(inner))

    def _distinct(self, shape: Distinct) -> str:
        """The parameter has a bit for each literal that was used."""
        items = [self._rule(self._json({"enum": [x.value]})) for x in shape.literals]
        end = f"bit_count_ge(_, {shape.least})"
        if shape.counted:
            bits, (low, high) = f"[0:{shape.counted}]", shape.share
            end = f"and({end}, and(bit_count_ge({bits}, {low}), bit_count_le({bits}, {high})))"
        allowed = [*(shape.slots or (shape.rest,)), shape.rest]
        names = [self._rule("", "::_") for _ in allowed]
        for i, (name, numbers) in enumerate(zip(names, allowed, strict=True)):
            options = [f'"" %if {end}']
            for bit in numbers:
                item = f"{self._comma if i else ''}{items[bit]}"
                after = f"{names[min(i + 1, len(names) - 1)]}::set_bit({bit})"
                fits = f"and(bit_clear({bit}), bit_count_lt(_, {shape.most}))"
                options.append(f"{item} {after} %if {fits}")
            self._rules[f"{name}::_"] = "\n | ".join(options)
        return self._in("[]", f"{names[0]}::0")

    # ---- Objects ----

    def _object(self, shape: Objects) -> str:
        """Two rules for each listed member: one with a member in front of it, one without. If
        members are counted, the parameter has their number."""
        is_counted = shape.least > 0 or shape.most is not None
        _check_length(len(shape.properties))
        same, more = ("::_", "::incr(_)") if is_counted else ("", "")
        fits = "" if shape.most is None else f" %if lt(_, {shape.most})"
        behind, owed = 0, 0  # members that may come after the listed one, and must
        enough = f'"" %if ge(_, {shape.least})' if is_counted else EMPTY
        first = rest = self._rule(enough, same)
        other = self._others(shape)
        if shape.some:
            (names, place), *more_names = shape.some
            if more_names or is_counted:
                raise refuse(place, "cannot be negated beside other conditions on names")
            one = self._others(shape, names) or _NEVER
            more_others = self._rule(f"({self._comma}{other})*")
            rest = self._rule(f"{more_others} {self._comma}{one} {more_others}")
            first = self._rule(f"({other}{self._comma})* {one} {more_others}")
        elif other and is_counted:
            rest = self._rule("", same)
            self._rules[f"{rest}{same}"] = f"{enough} | {self._comma}{other} {rest}{more}{fits}"
            first = self._rule(f"{enough} | {other} {rest}{more}{fits}", same)
        elif other:
            rest = self._rule(f"({self._comma}{other})*")
            first = self._rule(f"({other} {rest})?")
        for name, need in reversed(shape.properties):
            if self._plan.is_possible(need):
                member = f"{self._member(Strings(patterns=(one_of([name]),)), need)} {rest}{more}"
                if shape.most is not None:
                    member += f" %if lt(_, {shape.most - owed})"
                may_skip, missing = name not in shape.required, shape.least - behind
                skip = f"{same} %if ge(_, {missing})" if missing > 0 and not other else same
                first, rest = (
                    self._rule(f"{comma}{member}{f' | {skipped}{skip}' * may_skip}", same)
                    for comma, skipped in (("", first), (self._comma, rest))
                )
                behind, owed = behind + 1, owed + (not may_skip)
        return self._in("{}", f"{first}::0" if is_counted else first)

    def _others(self, shape: Objects, wanted: Strings = _ALL) -> str:
        """The rule of a member that is not listed and has a name in `wanted`; empty if none can."""
        listed = Strings(excluded=tuple(name for name, _ in shape.properties))
        patterns = tuple(pattern for names, _ in shape.patterns for pattern in names.patterns)
        entries = list(shape.patterns)
        if self._plan.is_possible(shape.rest):
            entries.append((Strings(without=patterns), shape.rest))
        options = []
        for names, need in entries:
            within = meet_strings(names, wanted)
            unlisted = within and meet_strings(within, listed)
            if unlisted and self._plan.is_possible(need) and not is_never_met(unlisted):
                options.append(self._member(unlisted, need))
        return self._rule(" | ".join(options)) if options else ""

    def _member(self, names: Strings, need: Need) -> str:
        name = self._writer.terminal(string_terminal(names))
        return f'{name}{self._gap}":"{self._gap}{self._need(need)}'


def _check_length(parts: int) -> None:
    if parts > _MAX_PARTS:  # llguidance recurses along them, and its stack has an end
        reason = f"more than {_MAX_PARTS} properties or prefixItems need too large a grammar"
        raise GrammarError(f"JSON schema: {reason}")
