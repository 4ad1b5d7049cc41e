"""Texts that a schema's patterns ask for: where one may stand anywhere in a string, nothing that a
grammar says leads a search to it."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex.compile import compile_regex
from scheduler_proc.grammar.regex.dfa import ByteDFA
from srt.wire.constraint import Constraint

MOST_PATTERNS = 32
LONGEST_PATTERN = 512  # characters
MOST_STATES = 2000
# The bytes of a class that are taken first: letters and digits, then what else is printed.
_BYTES = sorted(range(256), key=lambda byte: (not chr(byte).isalnum() or byte > 127, byte < 32))


def texts_of(constraint: Constraint) -> list[bytes]:
    """For each pattern in a schema or a tag the shortest text that it matches, as in JSON; not of
    those that are long, unknown or need many states."""
    if constraint.kind not in ("json_schema", "structural_tag"):
        return []
    found = dict.fromkeys(islice(_patterns(json.loads(constraint.source)), MOST_PATTERNS))
    texts = [text for pattern in found if (text := _text(pattern))]
    return [json.dumps(text, ensure_ascii=False)[1:-1].encode() for text in texts]


def _patterns(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _patterns(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name == "pattern" and isinstance(item, str):
                yield item
            elif name == "patternProperties" and isinstance(item, dict):
                yield from item
            yield from _patterns(item)


def _text(pattern: str) -> str:
    if len(pattern) > LONGEST_PATTERN:
        return ""
    try:
        return shortest_text(compile_regex(pattern, max_states=MOST_STATES)).decode()
    except GrammarError:
        return ""


def shortest_text(dfa: ByteDFA) -> bytes:
    """The shortest text that the automaton accepts, of letters and digits as far as may be. A
    breadth-first search."""
    symbols: dict[int, int] = {}
    for byte in _BYTES:
        symbols.setdefault(int(dfa.byte_class[byte]), byte)
    texts, states = {0: b""}, [0]
    for state in states:  # grows meanwhile
        if dfa.accepting[state]:
            return texts[state]
        for symbol, byte in symbols.items():
            target = int(dfa.transitions[state, symbol])
            if target >= 0 and target not in texts:
                texts[target] = texts[state] + bytes([byte])
                states.append(target)
    raise AssertionError("every state of a ByteDFA reaches acceptance")
