"""API speculation: what a model wrote after a gen's end may answer the gens that follow it.

A call's prompt is its whole text, so what was written ahead is found by content: a later call whose
text begins with that of an earlier one, and goes on with the beginning of what the model then
wrote, takes what follows, up to its own first stop. Nothing belongs to a state or to a back end.
Used by gens on the language's loop; one `Store` a run. Invariant: what is drawn (not greedy) is
given out once at most, so that no two gens share a draw, and only where it would be given out
whatever it were.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable, Mapping
from copy import copy
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

from msgspec import Struct

from lang.backends.base import Completion, Prompt
from lang.backends.sampling import Sampling

NumTokens = int | Literal["auto"]

AUTO_TOKENS = 64  # asked for besides a gen's own where it is not known what follows
MAX_MISSES = 2
MAX_ENTRIES = 256
MAX_CHARS = 4_000_000  # of all entries' texts
MAX_SITES = 10_000  # names may be made while a program runs

# A gen that sets anything else is asked alone: penalties depend on what was written before,
# constraints and log-probabilities belong to one answer.
_DRAW = ("temperature", "top_p", "top_k", "min_p", "logit_bias", "ignore_eos")
_FREE = {"max_tokens", "stop", "seed", "timeout_s"}


def draw_of(sampling: Sampling) -> Hashable | None:
    """What the tokens are drawn by, stops and limits aside; None if the gen must be asked alone."""
    if sampling.set_fields() - _FREE - {*_DRAW} or sampling.max_tokens < 1:
        return None
    if sampling.seed is not None and not sampling.is_greedy:
        return None  # the seed is this gen's own
    stops = sampling.stop
    # Within another one, which of the two ends a text depends on where tokens end.
    if "" in stops or any(one in other[1:] for one in stops for other in stops):
        return None
    biases = tuple(sorted(sampling.logit_bias.items()))
    return (*(getattr(sampling, name) for name in _DRAW if name != "logit_bias"), biases)


class Field(NamedTuple):
    """A gen's part of what was written: its text, and where the next literal begins: before the
    stop, which is `matched`."""

    text: str
    finish: str
    matched: str | None
    end: int


class Written(Struct, frozen=True):
    """What a model wrote. `ends` are the places in characters where its tokens end, as far as the
    API names their texts. `finish` is None if it was still writing, or was left. `num_tokens` is
    the API's count of all of it, 0 if there is none."""

    text: str
    ends: tuple[int, ...] = ()
    finish: str | None = None
    num_tokens: int = 0

    @classmethod
    def of(
        cls, completion: Completion, blanks: str = "", before: "Written | None" = None
    ) -> "Written":
        """What a completion has so far, after what it had `before`. `blanks` are those that a chat
        leaves out at the beginning of a turn."""
        text = completion.text
        at = 0 if text.startswith(blanks) else len(blanks)
        text = blanks[:at] + text
        known: tuple[int, ...] = ()
        if before is not None and before.ends and text.startswith(before.text):
            known, at = before.ends, before.ends[-1]
        ends = []
        for _, _, token in (completion.meta.get("output_token_logprobs") or [])[len(known) :]:
            if not token or not text.startswith(token, at):
                break
            at += len(token)
            ends.append(at)
        return cls(text, (*known, *ends), completion.finish, completion.completion_tokens)

    def count(self, start: int, until: int) -> tuple[int, bool]:
        """The tokens of a part, at most, and whether that is their number to the token."""
        if until <= start:
            return 0, True
        if self.ends and self.ends[-1] >= until:
            first = bisect_right(self.ends, start)
            is_exact = start == 0 or self.ends[first - 1 : first] == (start,)
            return bisect_left(self.ends, until) - first + 1, is_exact
        most = len(self.text[start:until].encode(errors="replace"))  # a token has a byte at least
        return (min(most, self.num_tokens) if self.finish and self.num_tokens else most), False

    def share(self, start: int, until: int) -> int:
        """The tokens of a part for counters: those that the API names, else its share of all."""
        count, is_exact = self.count(start, until)
        if is_exact or not self.num_tokens:
            return count
        return min(count, round(self.num_tokens * (until - start) / max(1, len(self.text))))

    def field(self, start: int, sampling: Sampling) -> Field | None:
        """What a gen at `start` would have written; None where that cannot be said."""
        stop = self._first_stop(start, sampling)
        cut = self._cut(start, sampling.max_tokens)
        if stop is not None:
            begin, end, matched = stop
            if self.count(start, end)[0] <= sampling.max_tokens:
                return Field(self.text[start:begin], "stop", matched, begin)
            if cut is not None and cut < end:
                return Field(self.text[start:cut], "length", None, cut)
            return None
        if cut is not None:
            return Field(self.text[start:cut], "length", None, cut)
        end = len(self.text)
        if self.finish == "stop" and self.count(start, end)[0] <= sampling.max_tokens:
            return Field(self.text[start:], "stop", None, end)
        return None

    def is_lost(self, start: int, sampling: Sampling) -> bool:
        """Whether more text does not help to say what a gen at `start` has written."""
        return self._first_stop(start, sampling) is not None and not self.field(start, sampling)

    def _cut(self, start: int, limit: int) -> int | None:
        """Where `limit` tokens from a token's beginning end; None if that is not known."""
        first = bisect_right(self.ends, start)
        is_begin = start == 0 or self.ends[first - 1 : first] == (start,)
        last = first + limit - 1
        return self.ends[last] if is_begin and last < len(self.ends) else None

    def _first_stop(self, start: int, sampling: Sampling) -> tuple[int, int, str] | None:
        """Where the first stop begins and ends, and which it is."""
        places = ((self.text.find(stop, start), stop) for stop in sampling.stop)
        found = [(at, at + len(stop), stop) for at, stop in places if at >= 0]
        return min(found, default=None)


class Site:
    """A place in a program where something was tried: `misses` in a row have not helped."""

    def __init__(self) -> None:
        self.misses = 0

    @property
    def is_worth_trying(self) -> bool:
        """Whether it may help."""
        return self.misses < MAX_MISSES


class Speculation:
    """A function's `num_api_spec_tokens` (None: not said, 0: none), and what it has learned of its
    gens, by their file, line and name, in all runs."""

    def __init__(self, num_tokens: NumTokens | None) -> None:
        """Raises ValueError for what is no number of tokens."""
        self.num_tokens = None if num_tokens is None else checked(num_tokens)
        self._sites: dict[str, Site] = {}
        self._reasoned: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def with_tokens(self, num_tokens: NumTokens | None) -> "Speculation":
        """The same function's with another number, if there is one."""
        if num_tokens is None:
            return self
        made = copy(self)
        made.num_tokens = checked(num_tokens)
        return made

    def site(self, name: str) -> Site:
        """The site of this name."""
        if name not in self._sites and len(self._sites) >= MAX_SITES:
            self._sites.clear()
        return self._sites.setdefault(name, Site())

    def is_off(self, backend: Any) -> bool:
        """Whether nothing is to be written ahead on a back end."""
        return not self.num_tokens or self._reasoned.get(id(backend)) is backend

    def has_reasoned(self, backend: Any) -> None:
        """A back end's model has reasoned before it answered: that would be paid for twice."""
        self._reasoned[id(backend)] = backend

    def limit(self, own: Sampling, steps: "tuple[Step, ...]") -> int:
        """The tokens to ask for; a literal has at most a token for each byte."""
        known = sum(len(literal.encode()) + each.max_tokens for literal, each in steps)
        if self.num_tokens == "auto":
            return own.max_tokens + (known or AUTO_TOKENS)
        wanted = max(own.max_tokens, self.num_tokens or 0)
        if not known:
            return wanted
        # Of what is drawn, see `Entry`, a part is of use only if all of it may come.
        return min(wanted, own.max_tokens + known) if own.is_greedy else own.max_tokens + known


Step = tuple[str, Sampling]  # a literal, and the gen after it


def checked(num_tokens: Any) -> NumTokens:
    """`num_api_spec_tokens`, if it is one. Raises ValueError."""
    is_number = isinstance(num_tokens, int) and not isinstance(num_tokens, bool)
    if num_tokens == "auto" or (is_number and num_tokens >= 0):
        made: NumTokens = num_tokens
        return made
    raise ValueError(f"num_api_spec_tokens is a number of tokens or 'auto', not {num_tokens!r}")


class Entry:
    """What was written after `text`, of `limit` tokens at most. The first `taken` characters are
    given out; those after a `used` one have answered nothing. `is_tried` says that it was not known
    what follows. If it was left early, `waited_for` are the gens by which that was decided, by the
    places where they begin.

    What is drawn must not be chosen by what it is: if fields that are too long for what was written
    were drawn anew, there would be too many short ones.
    """

    def __init__(
        self,
        text: str,
        written: Written,
        taken: int,
        cost: tuple[int, int],
        site: Site,
        waited_for: Mapping[int, Sampling],
        *,
        is_tried: bool,
    ) -> None:
        self.text, self.written = text, written
        self.taken = self.used = taken
        self.prompt_tokens, self._limit = cost
        self._waited_for = waited_for
        self._site, self._is_open = site, is_tried

    @property
    def num_chars(self) -> int:
        """Those of its texts."""
        return len(self.text) + len(self.written.text)

    def field(self, text: str, sampling: Sampling, *, is_shared: bool) -> tuple[int, Field] | None:
        """Where a call with this whole text begins, and what it takes."""
        at = len(text) - len(self.text)
        if at < max(1, self.taken) or self.written.text[:at] != text[len(self.text) :]:
            return None
        if not is_shared and not self._is_there_anyway(at, sampling):
            return None
        found = self.written.field(at, sampling)
        return None if found is None else (at, found)

    def _is_there_anyway(self, at: int, sampling: Sampling) -> bool:
        """Whether a gen's text would be there whatever it were."""
        if self._limit - self.written.count(0, at)[0] < sampling.max_tokens:
            return False
        if self.written.finish is not None:
            return True
        waited = self._waited_for.get(at)
        return waited is not None and (
            (waited.stop, waited.max_tokens) == (sampling.stop, sampling.max_tokens)
        )

    def judge(self, is_hit: bool) -> None:
        """It has helped, or, the first time, it has not."""
        if is_hit:
            self._site.misses = 0
        elif self._is_open:
            self._site.misses += 1
        self._is_open = False


class Store:
    """What was written ahead in one run."""

    def __init__(self, speculation: Speculation) -> None:
        self.speculation = speculation
        self._entries: deque[tuple[tuple[Any, ...], Entry]] = deque()
        self._num_chars = 0

    def add(self, key: tuple[Any, ...], entry: Entry) -> None:
        """Keep an entry; the oldest ones are dropped if there is too much."""
        self._entries.append((key, entry))
        self._num_chars += entry.num_chars
        while len(self._entries) > MAX_ENTRIES or self._num_chars > MAX_CHARS:
            self._num_chars -= self._entries.popleft()[1].num_chars

    def take(
        self, key: tuple[Any, ...], text: str, sampling: Sampling, *, is_shared: bool
    ) -> Completion | None:
        """The answer to a call with this whole text, if it is there. Unless `is_shared`, as greedy
        answers are, nobody else gets it."""
        for its_key, entry in [*self._entries]:
            if len(text) <= len(entry.text) or not text.startswith(entry.text) or its_key != key:
                continue
            found = entry.field(text, sampling, is_shared=is_shared)
            entry.judge(found is not None)
            if found is None:
                continue
            at, field = found
            taken = entry.written.share(entry.used, field.end)
            entry.used = max(entry.used, field.end)
            if not is_shared:
                entry.taken = field.end
            meta = {
                "speculated": True,
                "tokens_saved": entry.prompt_tokens + entry.written.share(0, at),
                "tokens_taken": taken,
            }
            return Completion(field.text, field.finish, field.matched, meta=meta)
        return None

    def end(self) -> None:
        """The run is over: what has not helped by now has not."""
        for _, entry in [*self._entries]:
            entry.judge(False)


def key_of(backend: Any, prompt: Prompt, draw: Hashable) -> tuple[Any, ...]:
    """What must be equal besides the text, for an answer to be found. The back end itself: another
    one may get its id."""
    images = tuple((image.digest, image.kind, image.num_frames) for image in prompt.images)
    turns = tuple((turn.role, turn.content) for turn in prompt.messages)
    return backend, turns, prompt.open_role, images, prompt.image_places, draw
