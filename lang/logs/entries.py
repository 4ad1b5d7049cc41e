"""What a log has of one call: what was asked, as hashes, and what the answer was."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from lang.backends.base import Completion, Prompt, Scores

CallKind = Literal["gen", "select", "score", "effect", "search"]

_HASH_BYTES = 8
_PARTS = ("model", "prompt", "parameters")
_WORDS = {"prompt": "function", "parameters": "arguments"}  # of an effect or a search


class Request(Struct, frozen=True):
    """The hashes of what was asked. They depend on no process and on no dictionary's order."""

    model: str
    prompt: str
    parameters: str

    def __str__(self) -> str:
        return f"{self.model}-{self.prompt}-{self.parameters}"


class Entry(Struct, frozen=True, omit_defaults=True):
    """One answered call. A gen has a completion for each sample; a select or score has `scores`, or
    a completion where the back end has no log-probabilities; an effect, or a search of a decoder,
    has the `value`, as JSON.

    Of an answer that a decoder chose among several, `branch` is the number.

    `at` is the address and `request` the hashes, as texts; `began_s` is in seconds since 1970.
    """

    at: str
    request: str
    kind: CallKind
    name: str = ""
    source: str = ""
    completions: tuple[Completion, ...] = ()
    scores: Scores | None = None
    value: Raw = Raw(b"")
    branch: int | None = None
    began_s: float = 0.0
    took_s: float = 0.0

    @property
    def answers(self) -> list[Any]:
        """What the back end returned."""
        return [*self.completions] if self.scores is None else [self.scores]


def request_of(model: str, prompt: Prompt, parameters: Any) -> Request:
    """The hashes of a call of the model with this fingerprint."""
    images = [
        (image.kind, image.digest, image.num_frames, place)
        for image, place in zip(prompt.images, prompt.image_places, strict=True)
    ]
    said = (prompt.text, prompt.open_role, prompt.literal_spans, images)
    return Request(_hash_of(model), _hash_of(said), _hash_of(parameters))


def request_of_effect(what: str, arguments: Any, model: str | None = None) -> Request:
    """The hashes of a function's call with the `arguments_of` it, or of a decoder's search over a
    function, which asks `model`."""
    of_model = "" if model is None else _hash_of(model)
    return Request(of_model, _hash_of(what), _hash_of(arguments))


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call as they are now, as JSON values."""
    return {"args": list(map(plain, args)), "kwargs": {k: plain(v) for k, v in kwargs.items()}}


def plain(value: Any) -> Any:
    """`value` as JSON has it. What JSON cannot have is its type's name: nothing may depend on the
    process, or change with the value."""
    try:
        made = msgspec.to_builtins(value, str_keys=True, enc_hook=_named, order="deterministic")
        return msgspec.json.decode(msgspec.json.encode(made))
    except (TypeError, ValueError, RecursionError):
        return _named(value)


def misfit(entry: Entry, request: Request) -> str:
    """What of a request differs from the one that was answered; "" if nothing does."""
    then = entry.request.split("-")
    now = (request.model, request.prompt, request.parameters)
    pairs = zip(_PARTS, then, now, strict=False)
    words = _WORDS if entry.kind in ("effect", "search") else {}
    return " and ".join(words.get(name, name) for name, old, new in pairs if old != new)


def digest_of(value: Any) -> str:
    """SHA-256 of the value's JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(_canonical(value)).hexdigest()


def _hash_of(value: Any) -> str:
    return hashlib.blake2b(_canonical(value), digest_size=_HASH_BYTES).hexdigest()


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_named, order="deterministic")


def _named(value: Any) -> str:
    """What stands for a value that is no JSON: nothing of it may depend on the process."""
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
