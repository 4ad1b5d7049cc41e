"""Where the ring's sockets are, how they are made, and the limits they all have.

All sockets are `ipc://` files in a directory of mode 0700, so the file system decides who may
talk to the ring. Sends never block: a full or missing peer is an answer, not a wait.
"""

import errno
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

from srt.args import ServerArgs
from srt.ring.crash_file import FILE_BYTES
from srt.ring.socket import Blob, RingContext, RingSocket
from srt.wire.errors import ConfigError, RequestError
from srt.wire.messages import RingMessage, encode

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
QUEUE_MESSAGES = 10_000  # per socket and peer
EVENT_INTERVAL_S = 1.0  # a RingEvent at least this often
HEARTBEAT_INTERVAL_S = 0.25  # a change is reported within this time
BEAT_REPEAT_S = 1.0  # and what has not changed after this, at most
# Nothing heard for this long is told: with the supervisor's looks that is within 3 s.
QUIET_S = 2.5
RING_LOST_S = 5.0  # neither a RingEvent nor the back's reply for this long: the ring is gone
LEASE_INTERVAL_S = 1.0  # a client's Hello at least this often
LEASE_S = 10.0  # no Hello for this long: the client is gone
MAX_EXPIRED_CLIENTS = 4096  # remembered, so that one that was only asleep learns of it

SMALL_FILES_BYTES = 64 * 1024  # of what a ring's directory holds besides the schedulers' records

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

MAX_DIRECTORY_BYTES = 90  # a Unix socket's path has at most 107, including its name

_ARGS_FILE = "args.json"
_PAGE_KEY_FILE = "page_key"


class Ring(NamedTuple):
    """A ring's directory and the addresses in it."""

    directory: Path

    def address(self, name: str) -> str:
        return f"ipc://{self.directory / name}"

    @property
    def front(self) -> str:
        """ROUTER of the tokenizer, for clients."""
        return self.address("front")

    @property
    def back(self) -> str:
        """ROUTER of the detokenizer, for clients."""
        return self.address("back")

    @property
    def programs(self) -> str:
        """ROUTER of the part that runs programs, for clients."""
        return self.address("programs")

    @property
    def events(self) -> str:
        """PUB of the supervisor, for everyone."""
        return self.address("events")

    @property
    def ctl(self) -> str:
        """PULL of the supervisor, for its children."""
        return self.address("ctl")

    def scheduler(self, replica: int) -> str:
        """PULL of a scheduler."""
        return self.address(f"scheduler.{replica}")

    @property
    def detokenizer(self) -> str:
        """PULL of the detokenizer."""
        return self.address("detokenizer")

    @property
    def credits(self) -> str:
        """PULL of the tokenizer, for credits and lost grammars."""
        return self.address("credits")

    @property
    def compiler(self) -> str:
        """PULL of the compiler, for constraints."""
        return self.address("compiler")

    @property
    def compiled(self) -> str:
        """PULL of the tokenizer, for the compiler's replies."""
        return self.address("compiled")

    @property
    def grammars(self) -> Path:
        """The directory of compiled grammars, one file by key; only the compiler adds to it."""
        return self.directory / "grammars"

    @property
    def _naming(self) -> Path:
        return self.directory / "naming"

    def write_naming(self, naming: str) -> None:
        """Write the naming of the compiler's grammars, as `artefact_key` takes it."""
        new = self._naming.with_suffix(".new")
        new.write_text(naming)
        new.replace(self._naming)

    def read_naming(self) -> str:
        """The naming of the compiler's grammars; "" before the compiler has written it."""
        try:
            return self._naming.read_text()
        except OSError:
            return ""

    def write_args(self, args: ServerArgs) -> None:
        """Write what the server's parts read when they start, a new key for its page among it."""
        for name, data in (
            (_ARGS_FILE, msgspec.json.encode(args)),
            (_PAGE_KEY_FILE, secrets.token_urlsafe(16).encode()),
        ):
            path = self.directory / name
            path.touch(mode=0o600)
            path.write_bytes(data)

    def read_page_key(self) -> str:
        """The key of the server's page, where nobody has an admin's."""
        return (self.directory / _PAGE_KEY_FILE).read_text()

    def read_args(self) -> ServerArgs:
        return msgspec.json.decode((self.directory / _ARGS_FILE).read_bytes(), type=ServerArgs)


def create_ring(args: ServerArgs) -> Ring:
    """Make the ring's private directory (a fresh one without --ring-dir), with room for what its
    parts write there, and with what they read.

    Raises ConfigError if it cannot be made, or there is no room.
    """
    parent = Path(args.ring_dir) if args.ring_dir else temporary_directory()
    with with_room_in(parent, args.dp):
        path = _new_directory(args.ring_dir)
    ring = Ring(path)
    try:
        _require_sockets(path)
        with with_room_in(path, args.dp):
            _reserve(path / "room", needed_bytes(args.dp))
            ring.write_args(args)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return ring


def temporary_directory() -> Path:
    """Where rings are without --ring-dir. Raises ConfigError if no directory can be written."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ConfigError(
            f"no temporary directory can be written ({error.strerror}): is the disk full? Make "
            "room, or choose one by --ring-dir"
        ) from error


def _new_directory(directory: str) -> Path:
    name = f"srt-ring-{secrets.token_hex(4)}"
    path = Path(directory).absolute() if directory else Path(tempfile.gettempdir()) / name
    if len(os.fsencode(path)) > MAX_DIRECTORY_BYTES:
        shorter = "" if directory else ": name a shorter one by --ring-dir"
        option = "--ring-dir" if directory else "the temporary directory"
        raise ConfigError(f"{option} {path} is too long for a Unix socket's address{shorter}")
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise ConfigError(f"--ring-dir {path} exists already: is a server running there?") from None
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        raise ConfigError(_cannot_be(path, error)) from None
    return path


def _require_sockets(directory: Path) -> None:
    """Raise ConfigError unless the file system has sockets: some that machines share have none."""
    path = directory / "probe"
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path))
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        raise ConfigError(_cannot_be(directory, error, "hold sockets")) from None
    path.unlink()


def _cannot_be(directory: Path, error: OSError, what: str = "be made") -> str:
    return (
        f"the ring's directory {directory} cannot {what}: {error.strerror}; choose another one by "
        "--ring-dir"
    )


def needed_bytes(replicas: int) -> int:
    """What the parts need in the ring's directory: for a moment a scheduler's record and that of
    the one before it are both there."""
    return 2 * replicas * FILE_BYTES + SMALL_FILES_BYTES


@contextmanager
def with_room_in(directory: Path, replicas: int) -> Iterator[None]:
    """Raises ConfigError if the block finds a full disk, or a user's share of it used up."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        need = f"{needed_bytes(replicas)} bytes are needed"
        raise ConfigError(
            f"the disk of the ring's directory {directory} is full or out of inodes, and {need}: "
            "make room, or choose another one by --ring-dir"
        ) from error


def _reserve(path: Path, num_bytes: int) -> None:
    """See that a file of this size can be written."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
    path.unlink()


def ring_at(url: str) -> Ring:
    """The ring in `ipc://DIRECTORY`. Raises ConfigError if there is none."""
    if url.startswith("tcp://"):
        raise ConfigError("a ring over TCP is not supported yet: use ipc:// or http://")
    path = Path(url.removeprefix("ipc://"))
    if not path.is_dir():
        raise ConfigError(f"no ring at {path}: is the server running?")
    if os.stat(path).st_uid != os.getuid():
        raise ConfigError(f"the ring at {path} belongs to another user")
    return Ring(path)


def open_socket(context: RingContext, kind: int) -> RingSocket:
    """A socket with the limits that every socket of the ring has."""
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.set(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.set(zmq.RCVHWM, QUEUE_MESSAGES)
    if kind == zmq.ROUTER:
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.ROUTER_HANDOVER, 1)  # a peer that reconnects takes its identity over
    if kind == zmq.SUB:
        socket.set(zmq.SUBSCRIBE, b"")
    return socket


def bind(context: RingContext, kind: int, address: str) -> RingSocket:
    socket = open_socket(context, kind)
    socket.bind(address)
    return socket


def connect(context: RingContext, kind: int, address: str) -> RingSocket:
    socket = open_socket(context, kind)
    socket.connect(address)
    return socket


def send_now(
    socket: RingSocket, message: RingMessage, to: bytes | None = None, blobs: Sequence[Blob] = ()
) -> bool:
    """Send without waiting, to peer `to` of a ROUTER if given, with the frames `blobs` behind the
    message. False if that peer is unreachable or its queue is full; the caller decides what that
    means.

    Raises RequestError for a frame above MAX_MESSAGE_BYTES: its receiver would drop the sender.
    """
    frames = (encode(message), *blobs)
    longest = max(map(len, frames))
    if longest > MAX_MESSAGE_BYTES:
        limit = f"a message of {longest} bytes is above the limit, {MAX_MESSAGE_BYTES}"
        raise RequestError(f"{limit} ({type(message).__name__})")
    return socket.send(*frames) if to is None else socket.send(to, *frames)
