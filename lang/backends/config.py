"""Settings for all programs of the process: the default back end, and switches by SGLang's names.

Read by `function` and `batch` whenever a run starts.
"""

import weakref
from dataclasses import dataclass
from typing import Any

from lang.backends.base import Backend
from lang.errors import LangError


@dataclass
class GlobalConfig:
    """With `enable_precache_with_tracing`, batches send their prompts' constant beginning ahead."""

    default_backend: Any = None
    enable_precache_with_tracing: bool = True


global_config = GlobalConfig()
_endpoints: weakref.WeakKeyDictionary[Any, Backend] = weakref.WeakKeyDictionary()


def set_default_backend(backend: Any) -> None:
    """Set the back end of runs that name none: a Backend, or an object with one in `endpoint`."""
    global_config.default_backend = backend


def backend_of(given: Any) -> Backend:
    """The back end for `given` (a Backend, a Runtime, an srt.Engine), or the default one.

    Raises LangError if there is none.
    """
    chosen = global_config.default_backend if given is None else given
    if chosen is None:
        raise LangError("there is no back end: pass backend=, or call set_default_backend")
    if hasattr(chosen, "directory") and hasattr(chosen, "client"):
        return _endpoint_of(chosen)
    backend: Backend = getattr(chosen, "endpoint", chosen)
    return backend


def _endpoint_of(engine: Any) -> Backend:
    """One endpoint per engine."""
    from lang.backends.runtime import endpoint_of

    if engine not in _endpoints:
        _endpoints[engine] = endpoint_of(engine)
    return _endpoints[engine]
