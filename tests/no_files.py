"""A process that may open no further file, as one at its limit."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_files() -> Iterator[None]:
    """Within it, this process can open nothing: what is open stays so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # below the first free descriptor
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
