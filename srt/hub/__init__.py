"""Models of the hub, by name: found in the cache or brought, before anything else starts.

What speaks with the hub is imported where it is needed only: a server of a local model does
without.
"""

from typing import NamedTuple

from msgspec.structs import replace

from srt.args import ServerArgs
from srt.hub.names import Link, parse_name

__all__ = ["Here", "model_here", "parse_name", "with_model_here"]


class Here(NamedTuple):
    """A model on this machine: what `resolve_model` takes, and the name that it was asked by, or
    "" if that is the same."""

    model: str
    name: str = ""


def model_here(model: str, *, checks_memory: bool = True) -> Here:
    """`model` on this machine, brought from the hub if it is one's name or address.

    Raises ConfigError, which says what to do.
    """
    name = parse_name(model)
    if name is None:
        return Here(model)
    if isinstance(name, Link):
        from srt.hub.link import fetch_link

        found = fetch_link(name)
    else:
        from srt.hub.repository import fetch

        found = fetch(name, checks_memory=checks_memory)
    return Here(str(found), str(name).replace(",", "_"))


def with_model_here(args: ServerArgs) -> ServerArgs:
    """`args` with a model of this machine, which clients call by the name that was given."""
    here = model_here(args.model, checks_memory=not args.is_cuda)
    served = args.served_model_name or here.name
    return replace(args, model=here.model, served_model_name=served)
