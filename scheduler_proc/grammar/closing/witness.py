"""Finds short completions of outputs whose grammar only tells what may come next.

A *witness* is a completion as tokens: after them the output may end. The search follows what is
forced; elsewhere it tries a few of the tokens that may follow, those that tend to end what has been
begun first, such as closing brackets. It is a limited discrepancy search (Harvey and Ginsberg,
1995): a path costs the ranks of its choices, so the first choices are followed to an end before
others are tried; and a place that looks like one seen before costs more each time, which leads out
of loops. Ahead of an output the first choices alone are followed before that, however often a place
looks the same: so many items or characters may be asked for. Grammars go by bytes, so what is found
is at last spelled in the fewest tokens.

What is found depends on the grammar, where it stands and the hint alone. The exception is a fuse:
a search whose masks take many times longer than those of real schemas is given up.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from time import thread_time
from typing import NamedTuple

import numpy as np

from scheduler_proc.grammar.base import Grammar, GrammarError
from scheduler_proc.grammar.vocabulary import TokenVocabulary

MOST_TOKENS = 1024  # of a completion
MOST_PLACES = 200  # looked at in a search from nothing: 0.1 to 0.5 ms each
FIRST_CHOICES = (48, True), (256, False)  # steps of these alone, and whether marks end loops
MOST_PLACES_NEAR = 16, 32  # looked at in one within an output: from, and with 32 tokens left, to
BETTER_PLACES = 96  # looked at after the first completion, for a shorter one
BETTER_PLACES_NEAR = 3  # the same with a hint
SEARCH_S, SEARCH_NEAR_S = 0.25, 0.03  # of CPU time: the fuse, ahead of an output and within it
LONGEST_SPELLED = 512  # bytes that are spelled in the fewest tokens
SEAM = 4  # tokens of a hint that are spelled anew with those before them
BYTES_PER_TOKEN = 8  # of a forced text that may still fit
FIRST_SHARE = 0.6  # of that time at most is for first choices alone
RANK_PRICE = 2  # of each choice before the one that is taken
OPEN_PRICE = 6  # of going on where something may be closed
SAME_PRICE = 16  # of a place that looks like another after a text of the same length
FREE = 8  # where a text may go on by one in so many tokens, it is free
TAILS = 8  # how many tokens at its beginning a hint may lose
SPELLING = 3  # how many times the fewest tokens those of a search may be
LONGEST_BYTES = 24  # of the tokens that a completion is spelled in

# Kinds of tokens that are tried at a place, in this order: patterns of their bytes, and how many of
# a kind, the shortest first. Where a text is free, as within a string, quotes are first.
_KINDS: tuple[tuple[bytes, int], ...] = (
    (rb"[\]})>;]", 2),
    (rb"\"\"|\[\]|\{\}|\(\)", 3),
    (rb"null|true|false", 1),
    (rb"[,:]", 2),
    (rb"[0-9]", 2),
    (rb"\"", 1),
    (rb"[\[{(<]", 2),
    (rb"[@:]|://", 3),
    (rb"[./]", 2),
    (rb"[ +=_|\n'`-]", 3),
)
_QUOTE_KIND = 5
_MARK_KINDS = slice(7, 10)
LONGEST_MARK = 5  # bytes of such a token
_WORDS = rb"[A-Za-z][A-Za-z0-9_-]{0,15}|[0-9]{2,}"  # the longest, and one that is short
_NUM_WORDS = 3


class _Place(NamedTuple):
    """A place that is still to be looked at: the tokens that lead to it, and the text that was
    forced last on the way. `number` makes the order complete."""

    price: int
    number: int
    tokens: list[int]
    forced: bytes = b""


class _Manner(NamedTuple):
    """How a search goes on: it looks at so many `places` and follows, at each, the first `width`
    choices. Out of loops that cannot be closed lead `marks` first, or else words. `texts` are tried
    first where a string cannot end."""

    places: int
    width: int | None = None
    marks: bool = False
    texts: Sequence[list[int]] = ()


class WitnessFinder:
    """For one vocabulary."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self._vocabulary, self._bytes = vocabulary, vocabulary.token_bytes
        self._longest = max(1, min(LONGEST_BYTES, vocabulary.trie.max_depth))
        self._ids = {data: i for i, data in reversed([*enumerate(vocabulary.token_bytes)]) if data}
        marks = re.compile(b"|".join(pattern for pattern, _ in _KINDS)).fullmatch
        found = {
            data: i for data, i in self._ids.items() if len(data) <= LONGEST_MARK and marks(data)
        }
        kinds = [_matching(found, pattern) for pattern, _ in _KINDS]
        self._closing = frozenset([*kinds[0], *kinds[_QUOTE_KIND]])
        kinds.append(_matching(self._ids, _WORDS)[::-1])
        self._candidates = np.array([i for kind in kinds for i in kind], np.int64)
        self._bounds = np.cumsum([0, *map(len, kinds)])

    def find(
        self,
        grammar: Grammar,
        hint: Sequence[int] = (),
        most: int = MOST_TOKENS,
        token: int | None = None,
        other: Sequence[int] = (),
    ) -> list[int] | None:
        """A completion of the output where `grammar` stands, which stays there, in at most `most`
        tokens; None if none is found. If the `hint` is one, or without its beginning, that is
        taken: without its first few tokens, or the bytes that `token`, the last one accepted, has
        written of it. If it is none, the `other` is tried in the same way. That takes 30 ms of CPU
        time at most, and a tenth of that as a rule."""
        if grammar.is_accepting():
            return []
        if most <= 0:
            return None
        for rest in () if token is None else self._rests(token, hint):
            if len(rest) <= most and _completes(grammar, rest):
                return rest
        tail = _fitting(grammar, hint, most) or _fitting(grammar, other, most)
        fewest, looks = MOST_PLACES_NEAR
        looks = min(looks, fewest + most // 2)
        until = thread_time() + SEARCH_NEAR_S
        return tail or self._search(grammar, hint, min(most, MOST_TOKENS), until, _Manner(looks))

    def find_ahead(
        self,
        grammar: Grammar,
        after: bytes = b"",
        effort: int = 1,
        texts: Sequence[bytes] = (),
    ) -> list[int] | None:
        """A completion of an output that is to come, at whose beginning `grammar` stands, and
        stays; None if none is found. Where text is free until `after`, that is its beginning.
        `texts` may have to stand within strings. That takes a quarter of a second of CPU time at
        most, or `effort` times that."""
        if grammar.is_accepting():
            return []
        started = thread_time()
        lead, most, found = self._lead(grammar, after), MOST_TOKENS, None
        within = [tokens for text in texts if (tokens := self.spelled(text))]
        for steps, marks in FIRST_CHOICES:
            until = started + FIRST_SHARE * SEARCH_S * effort
            manner = _Manner(steps, 1, marks, within)
            better = self._search(grammar, (), most, until, manner, lead)
            if better is not None:
                found, most = better, len(better) - 1
        manner = _Manner(effort * (MOST_PLACES if found is None else BETTER_PLACES), texts=within)
        until = started + SEARCH_S * effort
        return self._search(grammar, (), most, until, manner, lead) or found

    def _lead(self, grammar: Grammar, after: bytes) -> list[int]:
        """The tokens to what `after` opens."""
        opening = self.spelled(after)
        if not opening:
            return []
        grammar = grammar.fork()
        try:
            lead = self._forced(grammar, [], MOST_TOKENS)
            grammar.accept(opening)
        except GrammarError:
            return []
        return [*lead, *opening]

    def _rests(self, token: int, hint: Sequence[int]) -> Iterator[list[int]]:
        """What is left of the hint, if `token` ends as the hint begins; the shortest first."""
        data = self._bytes[token]
        text, count = b"", 0
        while count < len(hint) and len(text) < len(data):
            text += self._bytes[hint[count]]
            count += 1
        for size in range(min(len(data), len(text)), 0, -1):
            if data.endswith(text[:size]) and (rest := self.spelled(text[size:])) is not None:
                yield [*rest, *hint[count:]]

    def _search(
        self,
        start: Grammar,
        hint: Sequence[int],
        most: int,
        until: float,
        manner: _Manner,
        lead: Sequence[int] = (),
    ) -> list[int] | None:
        """A completion from where `start` stands, which begins with `lead`, in at most `most`
        tokens, looked for until this CPU time."""
        best: list[int] | None = None
        places, looks = [_Place(0, 0, [*lead])], manner.places
        visits: Counter[bytes] = Counter()
        seen: set[tuple[bytes, int]] = set()
        number = 0
        grammar, accepted = start.fork(), list[int]()
        while places and looks > 0 and thread_time() < until:
            looks -= 1
            place = heappop(places)
            if len(place.tokens) > SPELLING * most:
                continue
            try:
                same = _common(accepted, place.tokens)
                grammar.rollback(len(accepted) - same)
                grammar.accept(place.tokens[same:])
                tokens = self._forced(grammar, place.tokens, most)
                forced = (
                    b"".join(self._bytes[i] for i in tokens[len(place.tokens) :]) or place.forced
                )
                accepted = tokens
                found = self._ending(grammar, tokens, hint)
                if found is not None:
                    if len(found) <= most:
                        if best is None and manner.places <= MOST_PLACES:
                            looks = min(looks, BETTER_PLACES_NEAR if hint else BETTER_PLACES)
                        best, most = found, len(found) - 1
                    continue
                row = np.empty(self._vocabulary.mask_width, np.uint32)
                grammar.fill(row)
            except GrammarError:  # a dead end, after which a matcher may be of no use any more
                grammar, accepted = start.fork(), []
                continue
            look = row.tobytes() + forced
            length = sum(len(self._bytes[i]) for i in tokens)
            is_loop = visits[look] > 0
            price = place.price + (SAME_PRICE if (look, length) in seen else is_loop)
            seen.add((look, length))
            chosen = self._chosen(row, visits[look], manner.marks)
            instead = OPEN_PRICE if chosen[0] in self._closing else 0
            ways = [[token] for token in chosen]
            if manner.texts and not visits[look] and not self._has_quote(row):
                ways = [text for text in manner.texts if _goes_on(grammar, text)] + ways
            visits[look] += 1
            for rank, way in enumerate(ways[: manner.width]):
                number += 1
                cost = RANK_PRICE * rank + (instead if rank else 0)
                heappush(places, _Place(price + cost, -number, tokens + way, forced))
        return best

    def _forced(self, grammar: Grammar, tokens: list[int], most: int) -> list[int]:
        """The tokens with all that they force, which `grammar` goes along. Raises GrammarError if
        the vocabulary cannot spell it, or it is far longer than `most` tokens."""
        while not grammar.is_accepting() and (forced := grammar.forced_bytes()):
            is_short = len(forced) <= BYTES_PER_TOKEN * most
            spelled = self._longest_first(forced) if is_short else []
            if not spelled or len(tokens) + len(spelled) > SPELLING * most:
                raise GrammarError("what is forced cannot be spelled, or is too long")
            grammar.accept(spelled)
            tokens = tokens + spelled
        return tokens

    def _ending(self, grammar: Grammar, tokens: list[int], hint: Sequence[int]) -> list[int] | None:
        """The completion that `tokens`, after which `grammar` stands, make alone or with the end
        of the hint; in the fewest tokens, if the grammar takes those."""
        tail = [] if grammar.is_accepting() else _fitting(grammar, hint, MOST_TOKENS)
        if tail is None:
            return None
        found = tokens + tail
        mended = len(tokens) + min(SEAM, len(tail))  # the rest of a hint is in the fewest already
        text = b"".join(self._bytes[i] for i in found[:mended])
        fewest = self.spelled(text) if len(text) <= LONGEST_SPELLED else None
        if fewest is None or len(fewest) >= mended:
            return found
        fewest += found[mended:]
        grammar.rollback(len(tokens))
        fits = _completes(grammar, fewest)
        grammar.accept(tokens)
        return fewest if fits else found

    def _longest_first(self, data: bytes) -> list[int]:
        """`data` in the longest tokens, as far as there are any."""
        tokens, at = [], 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                if (token := self._ids.get(data[at:end])) is not None:
                    tokens.append(token)
                    at = end
                    break
            else:
                break
        return tokens

    def spelled(self, data: bytes) -> list[int] | None:
        """`data` in the fewest tokens, of those the first the longest; None if it has others."""
        far = len(data) + 1
        counts, chosen = [far] * len(data) + [0], [(0, 0)] * len(data)
        for at in reversed(range(len(data))):
            for end in range(min(len(data), at + self._longest), at, -1):
                if counts[end] + 1 < counts[at]:
                    token = self._ids.get(data[at:end])
                    if token is not None:
                        counts[at], chosen[at] = counts[end] + 1, (token, end)
        if counts[0] >= far:
            return None
        tokens, at = [], 0
        while at < len(data):
            token, at = chosen[at]
            tokens.append(token)
        return tokens

    def _has_quote(self, row: np.ndarray) -> bool:
        token = self._ids.get(b'"')
        return token is not None and bool(row[token >> 5] >> (token & 31) & 1)

    def _chosen(self, row: np.ndarray, visits: int, by_marks: bool) -> list[int]:
        """A few tokens of a mask, in the order in which they are to be tried. Where there were
        `visits` before, in a loop that cannot be closed, each mark in its turn is the first, or the
        longest word."""
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[self._candidates])
        bounds = np.searchsorted(allowed, self._bounds).tolist()
        found = [allowed[start:end] for start, end in pairwise(bounds)]
        parts = [part[:most] for part, (_, most) in zip(found, _KINDS, strict=False)]
        parts += [found[-1][: _NUM_WORDS - 1], found[-1][_NUM_WORDS - 1 :][-1:]]
        groups = [self._candidates[part].tolist() for part in parts]
        groups[-2:] = [groups[-2] + groups[-1]]
        closers, quotes, longest = groups[0], groups[_QUOTE_KIND], groups[-1][:2]
        marks = [i for part in groups[_MARK_KINDS] for i in part]
        if FREE * int(np.bitwise_count(row).sum()) > self._vocabulary.vocab_size:
            groups = [quotes, longest, marks, *groups[:2]]
        if visits and not closers:
            turn = (visits - 1) % (len(marks) + 1) if by_marks else len(marks)
            groups.insert(0, quotes or marks[turn : turn + 1] or longest)
        chosen = dict.fromkeys(token for group in groups for token in group)
        if chosen:
            return list(chosen)
        bits[[*self._vocabulary.eos_ids]] = 0
        some: list[int] = np.flatnonzero(bits)[: 2 * _NUM_WORDS].tolist()
        return some


def _goes_on(grammar: Grammar, tokens: Sequence[int]) -> bool:
    """Whether the output may go on by these tokens; the grammar stays where it is."""
    try:
        grammar.accept(tokens)
    except GrammarError:
        return False
    grammar.rollback(len(tokens))
    return True


def _common(first: list[int], second: list[int]) -> int:
    """How many tokens both begin with."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


def _fitting(grammar: Grammar, hint: Sequence[int], most: int) -> list[int] | None:
    """The hint, or what is left of it without its first few tokens, if it completes the output in
    at most `most` tokens."""
    for start in range(min(TAILS + 1, len(hint))):
        if len(hint) - start <= most and _completes(grammar, hint[start:]):
            return list(hint[start:])
    return None


def _completes(grammar: Grammar, tokens: Sequence[int]) -> bool:
    """Whether the output may end after these tokens; the grammar stays where it is."""
    try:
        grammar.accept(tokens)
    except GrammarError:
        return False
    whole = grammar.is_accepting()
    grammar.rollback(len(tokens))
    return whole


def _matching(ids: dict[bytes, int], pattern: bytes) -> list[int]:
    """The tokens whose bytes match a pattern, the shortest first."""
    matches = re.compile(pattern).fullmatch
    found = [data for data in ids if matches(data)]
    return [ids[data] for data in sorted(found, key=lambda data: (len(data), data))]
