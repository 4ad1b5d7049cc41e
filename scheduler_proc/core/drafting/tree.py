"""Guesses from the radix tree: what other reqs with the same tokens have gone on with, such as
retries, samples of one prompt and regenerated answers."""

from scheduler_proc.core.drafting.base import Match
from scheduler_proc.core.requests.request import Req
from scheduler_proc.memory.match_trackers import Cursor
from scheduler_proc.memory.radix_cache import RadixCache


class TreeTokens:
    """If all tokens of a req are in the tree of its salt, those that follow there: a match of its
    whole length. Changes nothing in the tree, and keeps nothing from being evicted."""

    name = "tree"

    def __init__(self, cache: RadixCache) -> None:
        self._cache = cache
        # By handle; with `Tokens.num_replaced` as it was at the last look.
        self._cursors: dict[int, tuple[Cursor, int]] = {}

    def match(self, req: Req, most: int) -> Match | None:
        tokens = req.tokens
        cursor, num_replaced = self._cursors.get(req.handle) or (Cursor(), -1)
        if num_replaced != tokens.num_replaced:
            if num_replaced >= 0:
                cursor.length = min(cursor.length, tokens.kept_since(num_replaced))
            self._cursors[req.handle] = cursor, tokens.num_replaced
        known = tokens.known
        if self._cache.track(cursor, known, req.wish.salt, req.spans) < len(known):
            return None
        found = self._cache.following(cursor, most)
        return Match(len(known), found) if len(found) else None

    def ended(self, req: Req) -> None:
        self._cursors.pop(req.handle, None)
