"""The two ways in: a pattern or a list of choices becomes a minimal automaton over bytes.

Called by the grammar compiler. The whole output has to match. Both raise GrammarError: its
subclass PatternError for a bad pattern, StateLimitError for a language that is too large.
"""

from collections.abc import Sequence

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex.alphabet import Alphabet
from scheduler_proc.grammar.regex.anchors import NEWLINE_MASK, resolve_end_anchors
from scheduler_proc.grammar.regex.dawg import Dawg, build_dawg
from scheduler_proc.grammar.regex.dfa import NO_MATCH, ByteDFA, finish, finish_minimal
from scheduler_proc.grammar.regex.nfa import NFA, build_nfa
from scheduler_proc.grammar.regex.prefix import byte_masks, put_after, put_before
from scheduler_proc.grammar.regex.subset import StateGraph, determinise
from srt.patterns.assertions import looks_at_words, whole
from srt.patterns.errors import StateLimitError
from srt.patterns.read_re import parse

MAX_STATES = 50_000
MAX_CHOICE_STATES = 200_000
MAX_CHOICE_BYTES = 8_000_000


def compile_regex(
    pattern: str,
    *,
    before: bytes = b"",
    after: bytes = b"",
    opener: bytes = b"",
    max_states: int = MAX_STATES,
    absent_bytes: bytes = b"",
) -> ByteDFA:
    r"""The automaton of the texts that `re.fullmatch(pattern, text, re.ASCII)` matches.

    A pattern that begins with `(?u)` gets Unicode's classes and case instead. `^`, `$`, `\A` and
    `\Z` may stand anywhere and mean what they mean in `re`; at the ends of a pattern they change
    nothing, since the whole text has to match anyway.

    With `after`, the output is free up to and including the first occurrence of these bytes, and
    the rest of it has to match; with `opener` too, an output may also match at once, and is free
    only if it begins with these bytes. With `before`, all this is about what follows these bytes,
    which the output begins with. No text may contain `absent_bytes`. `max_states` bounds the
    automaton before it is minimised.
    """
    tree = parse(pattern)
    if looks_at_words(tree):
        tree = whole(tree)
    nfa = resolve_end_anchors(build_nfa(tree))
    masks = _masks(nfa) | set(byte_masks(before + opener + after))
    alphabet = Alphabet(masks, absent_bytes)
    graph = put_after(after, determinise(nfa, alphabet, max_states), alphabet, opener, max_states)
    return finish(put_before(before, graph, alphabet), alphabet.byte_class)


def compile_choices(
    strings: Sequence[str],
    *,
    before: bytes = b"",
    after: bytes = b"",
    opener: bytes = b"",
    max_states: int = MAX_CHOICE_STATES,
    absent_bytes: bytes = b"",
) -> ByteDFA:
    """The automaton of exactly these strings; the keywords are those of `compile_regex`.

    Duplicates do no harm, and the empty string is a choice like any other.
    """
    choices = [_encoded(string, index) for index, string in enumerate(strings)]
    if sum(map(len, choices)) > MAX_CHOICE_BYTES:
        raise StateLimitError(f"the choices have more than {MAX_CHOICE_BYTES:,} bytes, the limit")
    absent = frozenset(absent_bytes)
    possible = [choice for choice in choices if absent.isdisjoint(choice)]
    if not possible or not absent.isdisjoint(before + opener + after):
        raise GrammarError(NO_MATCH)
    dawg = build_dawg(possible, max_states)
    used: set[int] = set().union(*possible)
    alphabet = Alphabet(byte_masks(bytes(used) + before + opener + after), absent_bytes)
    symbols = {byte: alphabet.symbols(1 << byte) for byte in used}
    graph = put_after(after, _graph(dawg, symbols), alphabet, opener, max_states)
    finished = finish if opener else finish_minimal
    return finished(put_before(before, graph, alphabet), alphabet.byte_class)


def compile_free(before: bytes, *, absent_bytes: bytes = b"") -> ByteDFA:
    """The automaton of all bytes that begin with `before`, text or not."""
    alphabet = Alphabet(byte_masks(before), absent_bytes)
    anything = StateGraph([[(alphabet.everything, 0)]], [True])
    return finish(put_before(before, anything, alphabet), alphabet.byte_class)


def _masks(nfa: NFA) -> set[int]:
    masks = {mask for edges in nfa.edges for mask, _ in edges}
    return masks | {NEWLINE_MASK} if nfa.anchors else masks


def _encoded(choice: str, index: int) -> bytes:
    try:
        return choice.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"choice {index} contains a surrogate code point") from None


def _graph(dawg: Dawg, symbols: dict[int, int]) -> StateGraph:
    """The same automaton over symbols; its start, the last node, becomes state 0."""
    last = len(dawg.final) - 1
    rows = [[(symbols[byte], last - to) for byte, to in edges] for edges in dawg.edges]
    return StateGraph(rows[::-1], dawg.final[::-1])
