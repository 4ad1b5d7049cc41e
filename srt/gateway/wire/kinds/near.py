"""What an unknown name tells of itself: a misspelt field, or a rule for the answer."""

import re
from collections.abc import Iterable

MAX_NAME_CHARS = 64
LEAST_LETTERS = 5  # of a name; more of the shorter ones differ in one letter without being misspelt

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NOT_IN_FORM = re.compile(r"[^a-z0-9]")
# In a name that is not known, these say that an answer is to match something, or to end somewhere.
_RULE = re.compile(
    "(?:allow|bad|ban|blacklist|choice|constrain|constraint|ebnf|forbid|forbidden|force|forced|format"
    "|function|gbnf|grammar|guide|guided|guidance|json|lark|limit|logit|max|maximum|min|minimum"
    "|pattern|regex|regexp|require|required|schema|stop|structure|structured|terminate|tool"
    "|truncate|truncation|whitelist|xml|yaml)(?:s|ed|ned|ing)?",
    re.IGNORECASE,
)


def rules_answers(name: str) -> bool:
    """Whether a field of this name probably constrains or bounds an answer."""
    return any(_RULE.fullmatch(word) for word in _WORD.findall(name[:MAX_NAME_CHARS]))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Which of the `known` names is meant: the same letters in another spelling (`maxTokens`), or,
    for names of LEAST_LETTERS or more, one letter that is missing, added, another one or in its
    neighbour's place. None if there is none."""
    form = _form(name)
    if not form or len(name) > MAX_NAME_CHARS:
        return None
    for other in known:
        theirs = _form(other)
        is_long = sum(map(str.isalpha, theirs)) >= LEAST_LETTERS
        if form == theirs or (is_long and _differ_in_one(form, theirs)):
            return other
    return None


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
