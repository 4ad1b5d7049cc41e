"""The server that a chat talks to: one that runs, or one of its own."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from srt.chat.text import Cleaner
from srt.client.http_client import is_here
from srt.files.model_files import DEFAULT_MODEL
from srt.hub import with_model_here
from srt.offline.engine import Engine
from srt.options.settings import read_settings
from srt.wire.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:30000"
_LOOK_S = 3.0
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Place(NamedTuple):
    """Where the server is; `engine` if it is our own."""

    url: str
    model: str
    engine: Engine | None = None


class _Named(msgspec.Struct):
    id: str


class _Refusal(msgspec.Struct):
    message: str


class _Models(msgspec.Struct):
    data: list[_Named] = []
    error: _Refusal | None = None


async def models_at(url: str, api_key: str | None) -> list[str] | None:
    """The names of what is served there; None if nobody answers who serves models.

    Raises ConfigError if the server refuses to tell us (401, 403).
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        options: Any = {"timeout": _LOOK_S, "headers": headers, "trust_env": not is_here(url)}
        async with httpx.AsyncClient(**options) as http:
            answer = await http.get(f"{url}/v1/models")
        models = msgspec.json.decode(answer.content, type=_Models)
    except (msgspec.MsgspecError, httpx.HTTPError, httpx.InvalidURL):
        return None
    if models.error is not None and answer.status_code in _REFUSED:
        message = Cleaner().of(models.error.message)
        raise ConfigError(f"{url}: {message} (see --api-key, or name another with --url)")
    return [model.id for model in models.data] or None


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
            raise ConfigError(f"{url}: a ring has one model; leave out {model}")
        if not (Path(url.removeprefix("ipc://")) / "front").exists():
            raise ConfigError(f"no server has its ring at {url}")
        yield Place(url, "")
        return
    try:
        names = await models_at(url or DEFAULT_URL, api_key)
    except ConfigError:
        if url is None and model:  # which that server may not have
            names = None
        else:
            raise
    if url is not None:
        if names is None:
            raise ConfigError(
                f"no server of models answers at {url}: start one with `srt serve`, or leave out "
                "--url"
            )
        if model and model not in names:
            raise ConfigError(f"{url} serves {', '.join(names)}, not {model}")
        yield Place(url, model or names[0])
        return
    if names is not None and (model is None or model in names):
        yield Place(DEFAULT_URL, model or names[0])
        return
    wanted = model or DEFAULT_MODEL
    with _ended_by_ctrl_c():
        here = with_model_here(read_settings([f"--model={wanted}"], os.environ).args)
    with waiting(f"starting a server of {wanted} ..."):
        engine = await asyncio.to_thread(Engine, here.model)
    try:
        yield Place(f"ipc://{engine.directory}", wanted, engine)
    finally:
        await asyncio.to_thread(engine.close)
