"""What an unknown name tells of itself: a misspelt field, or a rule for the answer."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

MAX_NAME_CHARS = 64
LEAST_LETTERS = 5  # of a name; more of the shorter ones differ in one letter without being misspelt

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NOT_IN_FORM = re.compile(r"[^a-z0-9]")
# In a name that is not known, these say that an answer is to match something, or to end somewhere.
_RULE = re.compile(
    "(?:allow|allowlist|bad|ban|blacklist|block|blocklist|bnf|choice|constrain|constraint|denylist"
    "|disallow|ebnf|enum|eos|forbid|forbidden|force|forced|format|function|gbnf|grammar|guide|guided"
    "|guidance|json|jsonmode|lark|length|limit|logit|max|maxlen|maximum|min|minimum|pattern|regex"
    "|regexp|require|required|schema|stop|stopping|strict|structural|structure|structured|suppress"
    "|terminate|terminator|tool|truncate|truncation|until|whitelist|xml|yaml)(?:s|ed|ned|ing)?",
    re.IGNORECASE,
)


def rules_answers(name: str) -> bool:
    """Whether a field of this name probably constrains or bounds an answer."""
    return any(_RULE.fullmatch(word) for word in _WORD.findall(name[:MAX_NAME_CHARS]))


def asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a field that probably rules answers does not do so with this value."""
    if value is False:
        return "allow" not in name.lower()  # what is not allowed is a rule
    return value in (None, "", [], {})


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Which of the `known` names is meant: the same letters in another spelling (`maxTokens`), or,
    for names of LEAST_LETTERS or more, one letter that is missing, added, another one or in its
    neighbour's place. None if there is none."""
    form = _form(name)
    if not form or len(name) > MAX_NAME_CHARS:
        return None
    for other in known:
        theirs = _form(other)
        if form == theirs or (_differ_in_one(form, theirs) and _is_long(theirs)):
            return other
    return None


def _is_long(form: str) -> bool:
    return sum(map(str.isalpha, form)) >= LEAST_LETTERS


@lru_cache(1024)
def _form(name: str) -> str:
    return _NOT_IN_FORM.sub("", name.lower())


def _differ_in_one(a: str, b: str) -> bool:
    """Whether two different texts are one edit from each other."""
    if abs(len(a) - len(b)) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if start is None:  # one is the other's beginning
        return True
    a, b = a[start:], b[start:]
    if len(a) != len(b):
        return a[1:] == b or a == b[1:]
    return a[1:] == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])
