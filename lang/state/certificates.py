"""Certificates: what a run asked, word for word, and what was answered, and a hash of all that."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from lang.generation.calls import described
from lang.logs.entries import digest_of, plain
from lang.logs.trace import Call, Trace


class CertifiedCall(Struct, frozen=True):
    """One call: its address, its whole prompt, its parameters and its answer."""

    address: str
    kind: str
    name: str
    prompt: str
    parameters: Any
    answer: Any
    error: str | None = None


class Certificate(Struct, frozen=True):
    """All calls of a state and of its forks. `hash` is the SHA-256 of the rest, as JSON with sorted
    keys: who has the same hash has the same prompts, parameters, model and answers."""

    model: str
    calls: list[CertifiedCall]
    hash: str

    @property
    def is_whole(self) -> bool:
        """Whether the hash is that of what is here."""
        return self.hash == _hash_of(self.model, self.calls)

    def to_json(self) -> str:
        """The certificate as text; `Certificate.from_json` reads it."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Certificate":
        """Raises msgspec.ValidationError for another text."""
        return msgspec.json.decode(text, type=cls)


def certificate_of(trace: Trace, model: str) -> Certificate:
    """The certificate of a state's calls so far."""
    calls = list(_calls(trace, ""))
    return Certificate(model, calls, _hash_of(model, calls))


def _calls(trace: Trace, prompt: str) -> Iterator[CertifiedCall]:
    for step in trace.steps:
        if isinstance(step, Call):
            prompt += step.asked.said
            yield CertifiedCall(
                step.address,
                step.kind,
                step.name,
                prompt,
                plain(described(step.asked.parameters)),
                plain(step.asked.answers),
                step.error,
            )
        else:
            prompt += step.said
            for child in step.children:
                yield from _calls(child, prompt)


def _hash_of(model: str, calls: list[CertifiedCall]) -> str:
    return digest_of([model, calls])
