"""What the route handlers share: the client of the ring, the server's facts, the metrics.

The application has one `Gateway`; handlers fetch it with `gateway_of`.
"""

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import starlette.requests
from msgspec import Struct, field

from srt.answers.tool_format import FORMATS, HERMES, ToolFormat
from srt.client.generation import Generation, Request, ScoreRequest, ServerClient
from srt.client.programs import Programs
from srt.files.sampling_defaults import NO_SAMPLING, ModelSampling
from srt.files.vocab import Vocab
from srt.gateway.errors import MODEL_NOT_FOUND
from srt.gateway.introspection.feed import Feed
from srt.gateway.limits.failed_keys import FailedKeys
from srt.gateway.limits.keys import Keys
from srt.gateway.limits.large_bodies import LargeBodies
from srt.gateway.limits.tenant import Name, is_admin
from srt.gateway.media.given import NO_MEDIA, MediaRules
from srt.gateway.media.load import MediaLoader
from srt.gateway.metrics import GatewayMetrics
from srt.gateway.stored_responses import StoredResponses
from srt.wire.errors import CONFLICT, ErrorInfo, RequestError, RingError, quoted

log = logging.getLogger(__name__)

# In a request's scope: the names of fields that were ignored, and by our names of fields those that
# the client gave them.
IGNORED, RENAMED = "srt.ignored", "srt.renamed"

HttpRequest = starlette.requests.Request


class GatewayInfo(Struct, frozen=True):
    """Facts about the served model and the server, fixed at start-up.

    Clients may call the model `model_name`, by its path and by `model_names`, in which `*` is any.
    `tokenizer_path` is the same path, or that of `--tokenizer`.
    `context_len` and `max_total_tokens` are in tokens. `max_requests` may be in flight, samples
    counted one by one. `server_args` is shown by /server_info, the paths among it to admins, and
    must hold no secrets. Without `api_keys` and `admin_keys` every route is open; with
    `share_cache_between_keys` all of them share the prefix cache. `reasoning` says that the model's
    answers begin with its reasoning, which chats keep apart. `stream_interval` is how many tokens
    an event of a stream stands for. Bodies bring `min_body_rate` bytes a second. `cors_origins` are
    the web origins that may call, `allowed_hosts` further names that a server without keys may be
    called by. `activations` is what `--activations` resolves to; `fingerprint` tells the model's
    files, with that, from others.
    `sampling` has the defaults of parameters that requests leave unset, which the front fills in.
    `media` says what pictures and videos may be shown. `unknown_fields` ("warn", "refuse") is what
    becomes of fields that the OpenAI routes do not know; with `strict_model` other models' names
    are refused. Where there are no `admin_keys`, `page_key`
    opens what the page shows of the server.
    """

    model_name: str
    model_path: str
    tokenizer_path: str
    context_len: int
    max_total_tokens: int
    version: str
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    share_cache_between_keys: bool = False
    reasoning: bool = False
    stream_interval: int = 1
    max_requests: int = 1024
    min_body_rate: int = 4096
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    model_names: tuple[str, ...] = ()
    response_store_bytes: int = 0
    activations: str = "auto"
    fingerprint: str = ""
    sampling: ModelSampling = NO_SAMPLING
    media: MediaRules = NO_MEDIA
    has_page: bool = True
    page_key: str = ""
    unknown_fields: str = "warn"
    strict_model: bool = False
    server_args: dict[str, Any] = {}

    @property
    def max_entries(self) -> int:
        """How many entries a list of ids, or of prompts, may have: the longest prompt, or the most
        prompts, whichever is more."""
        return max(min(self.context_len, self.max_total_tokens), self.max_requests)

    def check_entries(self, entries: Sequence[Any], name: str) -> None:
        """Raise RequestError if the field `name`, ids or prompts, has too many. Called before
        anything reads all of them."""
        if len(entries) > self.max_entries:
            reason = f"{name} has {len(entries)} entries; a prompt, or a batch, has at most "
            raise RequestError(f"{reason}{self.max_entries}", param=name)


class ProfileStart(Struct, frozen=True):
    """When a profile was started (time.monotonic()), and the scheduler's counters then."""

    at: float
    counters: dict[str, float]


class Refusal(Struct, frozen=True):
    """The ring's refusal of a tenant's request for load, which holds `until` (time.monotonic());
    unless it `spares_latency`, also for requests of that class, which may have less to wait for."""

    error: ErrorInfo
    until: float
    spares_latency: bool = False


class Loading(Struct, eq=False):
    """A request whose pictures are being loaded, and the names by which an abort finds it."""

    names: Set[Name]
    scope: asyncio.Timeout
    is_aborted: bool = False

    def abort(self) -> None:
        """End the loading."""
        if not self.is_aborted:
            self.is_aborted = True
            self.scope.reschedule(0)


class Gateway(Struct, eq=False):
    """The state of one gateway process.

    `live` holds, by tenant and rid, what can be aborted: the admitted requests, those that wait for
    admission, and scores; `groups` the rids that a client gave one name. `vocab` is
    the served model's. `keys` may be replaced at any time. `profile` is the one that has been
    started, `refusals` the last for load by tenant. `was_ready` says that the ring has been ready,
    as far as somebody asked. `num_aborts` counts how often everything was aborted, which no request
    that has begun before survives. `programs` is the way to the part that runs programs. `loading`
    are the requests whose pictures are being loaded. `feed` is what pages watch.
    """

    client: ServerClient
    info: GatewayInfo
    vocab: Vocab
    metrics: GatewayMetrics
    keys: Keys
    feed: Feed
    live: dict[Name, Generation | Request | ScoreRequest] = {}
    groups: dict[Name, list[str]] = {}
    loading: list[Loading] = []
    was_ready: bool = False
    num_aborts: int = 0
    profile: ProfileStart | None = None
    refusals: dict[str, Refusal] = {}
    programs: Programs | None = None
    stored: StoredResponses = field(default_factory=lambda: StoredResponses(0))
    failed_keys: FailedKeys = field(default_factory=FailedKeys)
    large_bodies: LargeBodies = field(default_factory=LargeBodies)
    media: MediaLoader = field(default_factory=MediaLoader)
    created: int = field(default_factory=lambda: int(time.time()))


def media_rules(gateway: Gateway) -> MediaRules:
    """What pictures and videos the served model takes, and how many."""
    ring = gateway.client.ring
    if ring is None or ring.media_kinds is None:
        return msgspec.structs.replace(gateway.info.media, kinds=None)
    return msgspec.structs.replace(gateway.info.media, kinds=frozenset(ring.media_kinds))


def call_format(gateway: Gateway) -> ToolFormat:
    """How the served model writes calls of tools."""
    ring = gateway.client.ring
    return HERMES if ring is None else _format_named(ring.call_format)


@functools.cache  # so that an unknown one is logged once
def _format_named(name: str) -> ToolFormat:
    if name not in FORMATS:
        log.warning("the server's way to write calls, %r, is unknown: read as Hermes's", name)
    return FORMATS.get(name, HERMES)


def sees(gateway: Gateway) -> bool:
    """Whether the served model is known to take pictures."""
    return "image" in (media_rules(gateway).kinds or ())


def names_of(gateway: Gateway) -> dict[Name, None]:
    """The names of all that can be aborted."""
    loading = (name for each in gateway.loading for name in each.names)
    return dict.fromkeys([*gateway.live, *loading])


@asynccontextmanager
async def abortable(gateway: Gateway, names: Set[Name]) -> AsyncIterator[None]:
    """A block that loads what a request of these names shows, before the ring knows of it. An abort
    of one of them, or of everything, ends the block with a RequestError."""
    loading = Loading(names, asyncio.timeout(None))
    gateway.loading.append(loading)
    try:
        async with loading.scope:
            yield
    except TimeoutError:
        if not loading.is_aborted:
            raise
    finally:
        gateway.loading.remove(loading)
    if loading.is_aborted:
        raise RequestError("the request was aborted", code=CONFLICT)


async def abort(gateway: Gateway, names: Sequence[Name]) -> None:
    """Abort the requests of these names."""
    for each in gateway.loading:
        if not each.names.isdisjoint(names):
            each.abort()
    for owner, rid in names:
        await gateway.client.abort(rid, owner)


async def abort_all(gateway: Gateway) -> list[Name]:
    """Abort everything that came through this gateway; returns what had a name."""
    gateway.num_aborts += 1
    for each in gateway.loading:
        each.abort()
    names = [*names_of(gateway)]
    await abort(gateway, names)
    return names


def gateway_of(request: HttpRequest) -> Gateway:
    """The gateway that handles `request`."""
    gateway: Gateway = request.app.gateway
    return gateway


def programs_of(request: HttpRequest) -> Programs:
    """The way to the part that runs programs. Raises RingError (503) if there is none."""
    programs = gateway_of(request).programs
    if programs is None:
        raise RingError("this gateway has no way to the part that runs programs")
    return programs


def is_served(model: str | None, info: GatewayInfo) -> bool:
    """Whether a request for this model is one for the model that is served."""
    names = (None, info.model_name, info.model_path, *info.model_names)
    return model in names or "*" in info.model_names


def shown_path(full: str) -> str:
    """A model's path, as far as the caller may know it. All but admins are told what clients
    choose a chat template by: the name of its file or folder, or org/name in the hub's cache."""
    path = Path(full)
    if is_admin():
        return full
    for folder in path.parents:
        if folder.name.startswith("models--") and folder / "snapshots" in path.parents:
            return folder.name.removeprefix("models--").replace("--", "/", 1) or path.name
    return path.name or full  # the root, which tells nothing


def check_model(model: str, info: GatewayInfo) -> None:
    """Raise RequestError (404) for a name of another model than the one that is served."""
    if not is_served(model, info):
        message = f" {quoted(model)} is not served here; this server has {info.model_name!r}"
        raise RequestError(message, at="model", code=MODEL_NOT_FOUND)


def model_of(request: HttpRequest, model: str | None) -> str:
    """The name under which an answer is given to a request for `model`: with one model, that is
    meant whatever it is called, and the answer's header says that the name was ignored. Raises
    RequestError (404) for an unknown name where names are strict."""
    info = gateway_of(request).info
    if info.strict_model and model is not None:
        check_model(model, info)
    elif not is_served(model, info):
        ignored_in(request)["model"] = None
        return info.model_name
    return model or info.model_name


def ignored_in(request: HttpRequest) -> dict[str, None]:
    """The names of a request's fields that were ignored, in their order, to be added to."""
    names: dict[str, None] = request.scope.setdefault(IGNORED, {})
    return names
