"""The places of requests in flight, and their bounds: of requests and of prompt tokens.

`Front` takes a place for each request that it does not refuse, and frees it when that ends. What a
request may still generate does not count: it is unknown, and usually far below its limit.
"""

from collections.abc import Callable, Iterable

from srt.wire.errors import OVERLOADED, RequestError


class Places:
    """At most `max_requests` places, and `max_tokens` prompt tokens in them. A prompt above
    `max_tokens` is taken when no other tokens are in flight, so that no valid request is refused
    forever."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._tokens: dict[tuple[bytes, str], int] = {}  # by (client, rid)
        self.num_tokens = 0
        # Called with the client and rid of each request that needs none any more, or has none.
        self.freed: Callable[[bytes, str], None] = lambda client, rid: None

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, name: tuple[bytes, str]) -> bool:
        return name in self._tokens

    def check_room(self, count: int) -> None:
        """Raise RequestError (overloaded) unless `count` more requests have room."""
        if len(self) + count > self.max_requests:
            raise _overloaded(f"{len(self)} requests are in flight")

    def check_tokens(self, count: int) -> None:
        """Raise RequestError (overloaded) unless `count` more prompt tokens have room."""
        if self.num_tokens and self.num_tokens + count > self.max_tokens:
            raise _overloaded(f"{self.num_tokens} prompt tokens are in flight")

    def take(self, client: bytes, rids: Iterable[str]) -> None:
        """Take places for requests whose prompts are not known yet: they count no tokens."""
        self._tokens.update(((client, rid), 0) for rid in rids)

    def fill(self, client: bytes, rid: str, num_tokens: int) -> None:
        """Count the prompt of a request, unless its place was freed meanwhile."""
        if (client, rid) in self._tokens:
            self._tokens[client, rid] = num_tokens
            self.num_tokens += num_tokens

    def free(self, client: bytes, rids: Iterable[str]) -> None:
        """Give places back. Unknown rids are ignored."""
        for rid in rids:
            self.num_tokens -= self._tokens.pop((client, rid), 0)
            self.freed(client, rid)

    def clear(self) -> None:
        """Free all."""
        self._tokens.clear()
        self.num_tokens = 0


def _overloaded(reason: str) -> RequestError:
    return RequestError(f"the server is at its limit: {reason}", code=OVERLOADED, retryable=True)
