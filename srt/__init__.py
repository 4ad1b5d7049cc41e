"""The serving runtime: everything that surrounds the model.

`AsyncClient` talks to a server, `Engine` runs one for this program alone, `LLM` does so with
vLLM's names, `SamplingParams` says how to sample. Names load on first use, so that importing a
part of `srt` stays cheap.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srt.client.face import AsyncClient
    from srt.client.media import Picture, Video
    from srt.llm import LLM
    from srt.offline.engine import Engine
    from srt.wire.errors import ConfigError, RequestError, RingError, SrtError
    from srt.wire.sampling import SamplingParams

__all__ = [
    "LLM",
    "AsyncClient",
    "ConfigError",
    "Engine",
    "Picture",
    "RequestError",
    "RingError",
    "SamplingParams",
    "SrtError",
    "Video",
]

_HOMES = {
    "AsyncClient": "srt.client.face",
    "ConfigError": "srt.wire.errors",
    "Engine": "srt.offline.engine",
    "LLM": "srt.llm",
    "Picture": "srt.client.media",
    "RequestError": "srt.wire.errors",
    "RingError": "srt.wire.errors",
    "SamplingParams": "srt.wire.sampling",
    "SrtError": "srt.wire.errors",
    "Video": "srt.client.media",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'srt' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
