"""What the runtime's back end must know of a served model: its name, BOS token and tokens' texts.

Over HTTP the server is asked. For a ring, on this machine, the model's files are read once.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from srt import forked
from srt.args import ServerArgs
from srt.files.model_files import fingerprint_of, resolve_model
from srt.files.sampling_defaults import ModelSampling
from srt.files.sizes import resolved_activations
from srt.files.vocab import Vocab, served_vocab
from srt.ring.places import ring_at
from srt.wire.errors import RingError

TIMEOUT_S = 60.0
TEXTS_AT_ONCE = 1024


T = TypeVar("T")


class _Info(msgspec.Struct):
    model_path: str
    bos_token_id: int | None = None
    fingerprint: str = ""
    media_placeholders: dict[str, str] | None = {}


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Texts(msgspec.Struct):
    text: list[str]


class ServedModel:
    """The model of the server at `url`, http:// or ipc://DIRECTORY. All raise RingError if the
    server cannot be asked, or does not answer as ours does."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._is_ring = url.startswith("ipc://")
        self._reading = asyncio.Lock()
        self._vocab: Vocab | None = None
        self._placeholders: Mapping[str, str] | None = None
        self._anchor: list[int] = []
        self._texts: dict[int, str] = {}
        forked.renew_in_children(self, ServedModel._begin_in_child)

    def _begin_in_child(self) -> None:
        self._reading = asyncio.Lock()  # a task of the parent may hold the old one

    async def name(self) -> str:
        """The server's name for it, or its path."""
        if self._is_ring:
            return ring_at(self._url).read_args().model_name
        return (await self._ask(_Info, "GET", "/get_model_info")).model_path

    async def fingerprint(self) -> str:
        """What tells its files, width of activations and sampling defaults from others', or its
        path where the server does not say."""
        if self._is_ring:
            sampling = (await self._read_vocab()).sampling
            return await asyncio.to_thread(_fingerprint, ring_at(self._url).read_args(), sampling)
        info = await self._ask(_Info, "GET", "/get_model_info")
        return info.fingerprint or info.model_path

    async def bos_id(self) -> int | None:
        """The token that texts may begin with, if the vocabulary has one."""
        if self._is_ring:
            return (await self._read_vocab()).bos_id
        return (await self._ask(_Info, "GET", "/get_model_info")).bos_token_id

    async def media_placeholders(self) -> Mapping[str, str] | None:
        """What stands for an "image" or a "video" in its texts; None: the server does not know it
        yet. Asked for over HTTP only, until it is known."""
        async with self._reading:
            if self._placeholders is None:
                info = await self._ask(_Info, "GET", "/get_model_info")
                self._placeholders = info.media_placeholders
            return self._placeholders

    async def texts(self, ids: Iterable[int]) -> Mapping[int, str]:
        """The text of each token; bytes that are not UTF-8 become U+FFFD."""
        missing = sorted(set(ids) - self._texts.keys())
        if missing and self._is_ring:
            vocab = await self._read_vocab()
            self._texts |= {i: vocab.decode([i], skip_special_tokens=False) for i in missing}
        elif missing:
            for start in range(0, len(missing), TEXTS_AT_ONCE):
                await self._ask_texts(missing[start : start + TEXTS_AT_ONCE])
        return self._texts

    async def _read_vocab(self) -> Vocab:
        async with self._reading:
            if self._vocab is None:
                args = ring_at(self._url).read_args()
                self._vocab = await asyncio.to_thread(served_vocab, args)
            return self._vocab

    async def _ask_texts(self, ids: list[int]) -> None:
        """Ask for the texts. A text's first space may be dropped, so each token follows others."""
        if not self._anchor:
            asked = {"prompt": "a", "add_special_tokens": False}
            self._anchor = (await self._ask(_Tokens, "POST", "/tokenize", asked)).tokens
        rows = [self._anchor, *([*self._anchor, i] for i in ids)]
        asked = {"tokens": rows, "skip_special_tokens": False}
        answered = (await self._ask(_Texts, "POST", "/detokenize", asked)).text
        if len(answered) != len(rows):
            raise RingError(f"{self._url}/detokenize gave {len(answered)} texts, not {len(rows)}")
        first, *texts = answered
        self._texts |= {i: text[len(first) :] for i, text in zip(ids, texts, strict=True)}

    async def _ask(self, kind: type[T], method: str, path: str, body: Any = None) -> T:
        import httpx2

        options: Any = {"base_url": self._url, "headers": self._headers, "timeout": TIMEOUT_S}
        try:
            async with httpx2.AsyncClient(**options) as http:
                response = await http.request(method, path, json=body)
                response.raise_for_status()
            return msgspec.json.decode(response.content, type=kind)
        except httpx2.HTTPError as error:
            raise RingError(f"cannot ask {self._url} for its model: {error}") from error
        except msgspec.DecodeError as error:
            raise RingError(f"{self._url}{path} does not answer as our server: {error}") from error


def _fingerprint(args: ServerArgs, sampling: ModelSampling) -> str:
    files = resolve_model(args.model, args.tokenizer)
    activations = resolved_activations(args.activations, files)
    return fingerprint_of(files, activations, sampling.under(args.sampling_defaults).defaults)
