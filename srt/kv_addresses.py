"""Where KV events are published, and where other machines join: which addresses are allowed, and
which one each replica takes.

Published blocks carry the token ids of prompts. So an address must be one that only programs on
this machine can reach, unless an option says that everybody may read them.
"""

import ipaddress
import os
import re

from srt.wire.errors import ConfigError

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")
_IPC = "ipc://"
_MAX_PATH_BYTES = 107  # of a Unix socket
_MAX_PORT = 65535

EVENTS_OPTION, REPLAY_OPTION = "--kv-events", "--kv-events-replay"


def check_kv_addresses(events: str, replay: str, *, public: bool, replicas: int = 1) -> None:
    """Raise ConfigError if these addresses ("": none) cannot work or are not allowed."""
    if replay and not events:
        raise ConfigError(f"{REPLAY_OPTION} needs {EVENTS_OPTION}")
    places: set[str] = set()
    for option, address in ((EVENTS_OPTION, events), (REPLAY_OPTION, replay)):
        fault = _fault(address, public, replicas) if address else ""
        if fault:
            raise ConfigError(f"{option} {address}: {fault}")
        own = {_place(address_of(address, replica)) for replica in range(replicas) if address}
        if own & places:
            raise ConfigError(
                f"{option} {address}: taken by {EVENTS_OPTION}; each replica needs a port for each"
            )
        places |= own


def check_cluster_address(address: str, keys: str, *, insecure: bool) -> None:
    """Raise ConfigError if other machines cannot join at `address`, or everybody could."""
    tcp, option = _TCP.fullmatch(address), "--cluster-bind"
    if tcp is None or int(tcp["port"]) > _MAX_PORT:
        raise ConfigError(f"{option} {address}: must be tcp://HOST:PORT (0: any free port)")
    if insecure and keys:
        raise ConfigError("--cluster-insecure does without --cluster-keys: leave one of them out")
    if insecure and not _is_loopback(tcp["host"]):
        raise ConfigError(
            f"{option} {address}: others could read prompts and answer requests there: "
            "--cluster-insecure is for loopback addresses only; `srt keys DIR` makes keys"
        )
    if not insecure and not keys:
        raise ConfigError(
            "--remote-replicas needs --cluster-keys DIR (`srt keys DIR` makes it), or on loopback "
            "--cluster-insecure"
        )


def address_of(address: str, replica: int) -> str:
    """The address that a replica binds: as in vLLM, its number is added to the port. To the path of
    a socket it is appended, except to the first one's."""
    tcp = _TCP.fullmatch(address)
    if tcp is None:
        return f"{address}_dp{replica}" if replica else address
    host = "127.0.0.1" if tcp["host"] == "localhost" else tcp["host"]  # ZeroMQ binds no names
    return f"tcp://{host}:{int(tcp['port']) + replica}"


def path_of(address: str) -> str:
    """The path of an `ipc://` address; "" of any other."""
    return address.removeprefix(_IPC) if address.startswith(_IPC) else ""


def _place(address: str) -> str:
    """What only one socket can have: a path, or a port, whatever its host."""
    return path_of(address) or address.rpartition(":")[2]


def _fault(address: str, public: bool, replicas: int) -> str:
    """What is wrong with `address`; "" if nothing is."""
    tcp = _TCP.fullmatch(address)
    if tcp is not None:
        if not 1 <= int(tcp["port"]) <= _MAX_PORT + 1 - replicas:
            return f"ports are 1 to {_MAX_PORT}, one for each replica"
        if not public and not _is_loopback(tcp["host"]):
            return (
                "others could read the prompts' token ids there: "
                "use 127.0.0.1 or ipc://, or allow it with --kv-events-public"
            )
        return ""
    if not path_of(address).startswith("/"):
        return "must be tcp://HOST:PORT, or ipc:// with an absolute path"
    if len(os.fsencode(path_of(address_of(address, replicas - 1)))) > _MAX_PATH_BYTES:
        return f"the path of a socket has at most {_MAX_PATH_BYTES} bytes"
    return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
