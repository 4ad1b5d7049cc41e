"""What a program needs from a model, wherever that runs: the `Backend` protocol and its plain data.

Primitives call it on the language's own event loop only, so a back end needs no locks. Every
call may be cancelled at any await, and must then end what it has begun on the server.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

from msgspec import Struct

from lang import loop
from lang.backends.sampling import Sampling
from lang.chat_template import ChatTemplate
from lang.errors import UnsupportedError
from srt.client.generation import Likelihood

if TYPE_CHECKING:
    from srt.client.programs import ProgramSession


class Image(Struct, frozen=True, dict=True):
    """An image, or frames of a video (`kind` "video"), as the program gave it."""

    data: bytes
    kind: str = "image"
    num_frames: int = 0

    @cached_property
    def digest(self) -> str:
        """The hash of its bytes, in hexadecimal; it takes a millisecond for a megabyte, once."""
        return hashlib.blake2b(self.data, digest_size=16).hexdigest()


class Turn(Struct, frozen=True):
    """A closed turn of a chat. Each image is before the character of `content` that its place
    names, or without one at the beginning."""

    role: str
    content: str
    images: tuple[Image, ...] = ()
    image_places: tuple[int, ...] = ()


class Prompt(Struct, frozen=True):
    """The text of a state so far.

    `text` is all of it, with the chat template's marks. A chat back end reads `messages` (the
    closed turns, without the default system prompt), and the turn that is still open:
    `open_role` ("" outside roles) and `open_text`, the text of that turn so far. `open_text` of
    an assistant's turn is a prefix that the answer must continue. `literal_spans` are the parts
    of `text`, [start, stop) in characters, that are inside roles: control tokens there are text.
    `images` are those of all of it, in order, each before the character of `text` that its place
    names. `fork_turns` are the numbers of closed turns at which states were forked, up to this one:
    others share the turns before.
    """

    text: str
    messages: tuple[Turn, ...] = ()
    open_role: str = ""
    open_text: str = ""
    images: tuple[Image, ...] = ()
    literal_spans: tuple[tuple[int, int], ...] = ()
    image_places: tuple[int, ...] = ()
    fork_turns: tuple[int, ...] = ()


class Completion(Struct, frozen=True):
    """A completion, complete (`finish` says why it ended) or so far (None).

    `text` is all of it so far. `meta` is what `get_meta_info` returns besides the fields here, for
    instance `output_token_logprobs`.
    """

    text: str
    finish: str | None = None
    matched: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    meta: dict[str, Any] = {}


class Scored(Likelihood, Struct, frozen=True):
    """One continuation's log-probabilities after a prompt, token by token. `unconditional` are
    those of the same tokens with no prompt before them; it is empty unless it was asked for."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    unconditional: tuple[float | None, ...] = ()


class Scores(Struct, frozen=True):
    """All continuations of one prompt, in the order asked for, and the tokens that took."""

    continuations: tuple[Scored, ...]
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Capabilities(Struct, frozen=True):
    """What a back end can do; primitives refuse the rest with an UnsupportedError.

    `chat_only`: every gen must be in an assistant's role. `score`: `score` gives exact
    log-probabilities; else `select` is called. `constraints`: regex, json_schema, ebnf and
    dtype; unless it `enforces` them, gens check its answers.
    Without `stop_regex` a gen searches for the patterns itself, in a stream. `several`: `samples`
    gives many completions for one request.
    `continues`: of those that are `chat_only`, an answer may begin with text of the program's.
    `token_texts`: the texts of log-probabilities come with a stream. `refuses_speculation`: why
    `num_api_spec_tokens` is of no use, None if it is of use.
    """

    chat_only: bool = False
    score: bool = False
    images: bool = False
    constraints: bool = False
    enforces: bool = True
    several: bool = False
    stop_regex: bool = False
    continues: bool = False
    token_texts: bool = False
    refuses_speculation: str | None = "it has no API whose calls cost their whole prompt"


class Backend(Protocol):
    """A model that programs run on. Errors are raised as exceptions; none is returned.

    The defaults are for what a back end lacks: it is refused by name, or does nothing.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def chat_template(self) -> ChatTemplate:
        """How roles become text. Called once per program, so the answer should be cached."""
        return ChatTemplate()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """One whole completion. `sampling.n` is always 1: a gen asks n times."""
        ...

    async def samples(self, prompt: Prompt, sampling: Sampling, count: int) -> list[Completion]:
        """`count` completions of one prompt, by one request, for back ends with `several`."""
        raise UnsupportedError("n", f"{type(self).__name__} gives one completion to a request")

    def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Completion]:
        """The completion as it grows; the last one, and only that, has `finish`."""
        ...

    async def score(
        self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False
    ) -> Scores:
        """Log-probabilities of texts after the prompt; see `Scored`."""
        raise UnsupportedError("score", f"{type(self).__name__} has no log-probabilities of texts")

    async def select(
        self, prompt: Prompt, choices: Sequence[str], sampling: Sampling
    ) -> Completion:
        """The model's choice, for back ends without `score`: `text` is one of `choices`."""
        raise UnsupportedError("select", f"{type(self).__name__} cannot choose among texts")

    async def fingerprint(self) -> str:
        """What tells its model from others, for logs: the same as long as the answers are."""
        return type(self).__qualname__

    async def open_session(self, idle_s: float, cache_salt: str) -> "ProgramSession":
        """A session for programs that run on the server."""
        raise UnsupportedError("session", f"{type(self).__name__} runs no programs")

    async def prefetch(self, prefix: str) -> None:
        """Compute `prefix` and keep it in the server's cache; does nothing if there is none."""
        ...

    async def flush_cache(self) -> None:
        """Empty the server's prefix cache."""
        raise UnsupportedError("flush_cache", f"{type(self).__name__} has no cache of ours")

    async def aclose(self) -> None:
        """Close connections. May be called more than once."""
        ...


class BackendDefaults(Backend):
    """A back end that has the protocol's defaults, streams in one piece unless it says otherwise,
    and can be closed in programs without a loop."""

    capabilities = Capabilities()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        raise NotImplementedError(f"{type(self).__name__} has no method `generate`")

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Completion]:
        yield await self.generate(prompt, sampling)

    async def prefetch(self, prefix: str) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def close(self) -> None:
        """`aclose`, for programs without a loop; a `with` block ends with it."""
        loop.call(self.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
