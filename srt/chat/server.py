"""The server that a chat talks to: one that runs, or one of its own."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import msgspec

from srt.chat.text import Cleaner
from srt.client.http.client import is_here
from srt.files.model_files import DEFAULT_MODEL
from srt.hub import with_model_here
from srt.hub.names import shown_model
from srt.offline.engine import Engine
from srt.options.settings import read_settings
from srt.wire.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:30000"
_LOOK_S = 3.0
_OF_CARD = {"temperature": 0.2, "top_p": 0.9}


class Place(NamedTuple):
    """Where the server is; `engine` if it is our own."""

    url: str
    model: str
    engine: Engine | None = None

    def sampling(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The sampling parameters `asked` for. The embedded model's file has no defaults, and at
        the neutral temperature it writes nonsense: in place of these it gets those of its card."""
        is_open = asked["temperature"] is None and asked["top_p"] is None
        return {**asked, **(_OF_CARD if is_open and self.model == DEFAULT_MODEL else {})}


class _Named(msgspec.Struct):
    id: str


class _Refusal(msgspec.Struct):
    message: str


class _Models(msgspec.Struct):
    data: list[_Named] = []
    error: _Refusal | None = None


async def models_at(url: str, api_key: str | None, *, is_chosen: bool = True) -> list[str] | None:
    """The names of what is served there; None if nobody answers who serves models.

    Raises ConfigError if the server does not tell us; unless somebody has chosen it, only if it is
    one of models that wants a key.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    options: Any = {"timeout": _LOOK_S, "headers": headers, "trust_env": not is_here(url)}
    try:
        async with httpx2.AsyncClient(**options) as http:
            answer = await http.get(f"{url}/v1/models")
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return None
    except (ImportError, ValueError) as error:
        raise ConfigError(f"the proxy that the environment names: {error}") from None
    try:
        models = msgspec.json.decode(answer.content, type=_Models)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        models = _Models()
    if answer.is_success:
        return [model.id for model in models.data] or None
    wants_key = answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    if not (is_chosen or (wants_key and models.error)):
        return None
    told = Cleaner().of(models.error.message) if models.error else ""
    advice = " (see --api-key, or name another with --url)" if wants_key else ""
    raise ConfigError(f"{url}: {told or f'it answered {answer.status_code}'}{advice}")


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """For what holds the loop, such as a download: asyncio would only cancel the task."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@asynccontextmanager
async def place(
    url: str | None,
    model: str | None,
    api_key: str | None,
    waiting: Callable[[str], AbstractContextManager[None]],
) -> AsyncIterator[Place]:
    """A running server at `url`, or at the default address if it has `model` or none is asked for;
    otherwise one of our own, which ends with this context and with this process; `waiting` shows a
    text while it starts.

    Raises ConfigError if there is none, or it serves another model.
    """
    if url is not None and not url.startswith("http"):
        if model:
            raise ConfigError(f"{url}: a ring has one model; leave out {shown_model(model)}")
        if not (Path(url.removeprefix("ipc://")) / "front").exists():
            raise ConfigError(f"no server has its ring at {url}")
        yield Place(url, "")
        return
    if url is not None:
        yield await _server_at(url, model, api_key)
        return
    try:
        names = await models_at(DEFAULT_URL, api_key, is_chosen=False)
    except ConfigError:
        if model is None:
            raise
        names = None  # it may not have this model, which we can serve
    if names is not None and (model is None or model in names):
        yield Place(DEFAULT_URL, model or names[0])
        return
    given = [] if model is None else [f"--model={model}"]
    args = read_settings(given, os.environ).args
    name = shown_model(args.model)
    with _ended_by_ctrl_c():
        here = with_model_here(args)
    with waiting(f"starting a server of {name} ..."), _ended_by_ctrl_c():
        engine = Engine(here.model)
    try:
        yield Place(f"ipc://{engine.directory}", name, engine)
    finally:
        await asyncio.to_thread(engine.close)


async def _server_at(url: str, model: str | None, api_key: str | None) -> Place:
    names = await models_at(url, api_key)
    if names is None:
        raise ConfigError(
            f"no server of models answers at {url}: start one with `srt serve`, or leave out --url"
        )
    if model is not None and model not in names:
        raise ConfigError(f"{url} serves {', '.join(names)}, not {shown_model(model)}")
    return Place(url, model or names[0])
