"""The HTTP socket. The launcher binds it and the gateway inherits it, so that a restarted gateway
has the same port, and connections made meanwhile wait in the backlog instead of being refused."""

import errno
import logging
import socket

from srt.machine import allow_files
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

BACKLOG = 2048
_OTHER_HOST = "--host takes an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them"
_ADVICE = {
    errno.EADDRNOTAVAIL: _OTHER_HOST,
    errno.EADDRINUSE: "end what listens there, or take another: --port 0 finds a free one",
    errno.EACCES: "this user may not take a port below 1024: --port names another",
}
# A peer that is gone without a word, while it waits for an answer that may take hours, is known to
# be gone after two minutes. Connections have these options from the socket that listens.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}
OTHER_FILES = 256  # files that a process has open besides its connections


def bind_listener(host: str, port: int) -> socket.socket:
    """A bound, listening TCP socket; port 0 takes a free one. Raises ConfigError: what is wrong,
    and after a semicolon what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # not on every system
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        sock.close()
        why = error.strerror if isinstance(error, OSError) else "no host can have this name"
        is_host = isinstance(error, (socket.gaierror, UnicodeError))
        advice = _OTHER_HOST if is_host else _ADVICE.get(getattr(error, "errno", 0), "")
        raise ConfigError(
            f"cannot listen on {host}:{port}: {why}{'; ' if advice else ''}{advice}"
        ) from error
    sock.setblocking(False)
    return sock


def url_of(sock: socket.socket) -> str:
    """The http:// address of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files, as far as allowed, for `count` connections."""
    wanted = count + OTHER_FILES
    allowed = allow_files(wanted)
    if allowed < wanted:
        log.warning("%d connections need %d open files, %d are allowed", count, wanted, allowed)
