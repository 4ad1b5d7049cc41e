"""What the launcher asks of Ray for each replica on another machine."""

import importlib.util
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from srt.args import ServerArgs
from srt.cluster.keys import remove
from srt.files.model_files import DEFAULT_MODEL
from srt.wire.errors import ConfigError, quoted

_OPTION = "--replica-resources"


class RayOptions(Struct, frozen=True):
    """What the driver gets: where agents `join` and the public key of that `head` ("": they go
    without keys), in which folder of `keys` theirs are allowed, how many `replicas` there are, the
    Ray `resources` of each, which fields of ServerArgs are each agent's `own`, and how much it
    logs."""

    join: str
    head: str
    keys: str
    replicas: int
    resources: dict[str, float]
    own: dict[str, Any] = {}
    log_level: str = "info"


def key_name(join: str, number: int) -> str:
    """The name of the key of an actor's agent: another server may have the same folder of keys."""
    return f"ray-{urlsplit(join).port}-{number}"


def forget_keys(options: RayOptions) -> None:
    """Allow the keys of Ray's agents no longer."""
    for number in range(options.replicas if options.head else 0):
        with suppress(ConfigError):  # it is not there
            remove(Path(options.keys), key_name(options.join, number))


def check_ray(args: ServerArgs) -> None:
    """Raise ConfigError if Ray is asked for, and cannot be what starts agents."""
    if args.cluster != "ray":
        return
    if args.remote_replicas == 0:
        raise ConfigError("--cluster ray starts the replicas of --remote-replicas, which is 0")
    resources_of(args.replica_resources)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "--cluster ray: the package ray is not installed: `pip install 'srt-lang[ray]'` here "
            "and on all machines of the cluster"
        )


def resources_of(text: str) -> dict[str, float]:
    """The Ray resources of `--replica-resources`, by name. Raises ConfigError."""
    rule = f"{_OPTION} {quoted(text)}: an object such as " + '{"CPU": 8} is needed'
    try:
        read: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{rule} ({error})") from error
    if not isinstance(read, dict):
        raise ConfigError(rule)
    resources = {}
    for name, amount in read.items():
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not is_number or not math.isfinite(amount) or amount < 0:
            raise ConfigError(f"{rule}: {quoted(name)} must be a number, 0 or more")
        resources[name] = float(amount)
    if not any(resources.values()):
        raise ConfigError(f"{rule}: with something in it that a machine has")
    return resources


def own_fields(args: ServerArgs, resources: dict[str, float]) -> dict[str, Any]:
    """The fields of ServerArgs that are an agent's own: as many threads as the CPUs that Ray sets
    aside for it, since several agents may be on one machine, the device, and whole paths, since it
    runs in another folder."""
    own: dict[str, Any] = {"device": args.device}
    if threads := args.threads or int(resources.get("CPU", 0.0)):
        own["threads"] = threads
    paths = {"tokenizer": args.tokenizer}
    if args.model != DEFAULT_MODEL:
        paths["model"] = args.model
    return own | {
        name: os.path.abspath(path) for name, path in paths.items() if os.path.exists(path)
    }
