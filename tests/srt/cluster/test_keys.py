"""Keys of machines: their files, who is allowed, and that nobody else's message arrives."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from srt.cluster import curve
from srt.cluster.curve import Authenticator, Keys, connect_with, new_keys, public_of, serve_with
from srt.cluster.keys import (
    LOOK_INTERVAL_S,
    MAX_FILE_BYTES,
    AllowedKeys,
    allow,
    checked_key,
    load_head_key,
    load_keys,
    make_keys,
    remove,
    require_loopback,
    set_head_key,
)
from srt.commands.command import main
from srt.ring.places import open_socket
from srt.ring.socket import RingContext, RingSocket
from srt.tasks import TaskSet
from srt.wire.errors import ConfigError
from tests.waiting import SOON_S


def test_a_pair_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        keys = make_keys(tmp_path / "deep" / "keys")
    finally:
        os.umask(umask)
    folder = tmp_path / "deep" / "keys"
    assert (folder.stat().st_mode & 0o777, (folder / "secret").stat().st_mode & 0o777) == (
        *(0o700, 0o600),
    )
    assert make_keys(folder) == load_keys(folder) == keys
    assert (folder / "public").read_text().strip() == keys.public == public_of(keys.secret)
    assert keys.secret not in (folder / "public").read_text()
    assert make_keys(tmp_path / "other") != keys


def test_who_makes_keys_at_once_gets_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_meanwhile() -> Keys:
        monkeypatch.undo()
        others.append(make_keys(tmp_path))
        return new_keys()

    others: list[Keys] = []
    monkeypatch.setattr("srt.cluster.keys.new_keys", made_meanwhile)
    assert [make_keys(tmp_path)] == others == [load_keys(tmp_path)]
    (tmp_path / "public").unlink()  # as where the first try ended between the two files
    make_keys(tmp_path)
    assert (tmp_path / "public").read_text().strip() == others[0].public
    assert sorted(each.name for each in tmp_path.iterdir()) == ["allowed", "public", "secret"]


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o602])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    make_keys(tmp_path)
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}"):
        load_keys(tmp_path)


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    (tmp_path / "secret").write_text(keys.secret[:-1])
    with pytest.raises(ConfigError, match="does not hold a key") as raised:
        load_keys(tmp_path)
    assert keys.secret[:16] not in str(raised.value)
    with pytest.raises(ConfigError, match=r"No such file.*srt keys"):
        load_keys(tmp_path / "nowhere")


@pytest.mark.parametrize("key", ["", "0" * 63, "0" * 65, "g" * 64, "0" * 40, "00 " * 32])
def test_what_is_no_key_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        checked_key(key)
    with pytest.raises(ConfigError):
        allow(tmp_path, key)
    with pytest.raises(ConfigError):
        set_head_key(tmp_path, key)


@pytest.mark.parametrize("name", ["../up", ".hidden", "a/b", "x" * 65, "-x", "a b"])
def test_a_name_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no name for a key"):
        allow(tmp_path, "0" * 64, name)
    with pytest.raises(ConfigError, match="no name for a key"):
        remove(tmp_path, name)


def test_the_command_makes_allows_and_removes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, node = str(tmp_path / "head"), str(tmp_path / "node")
    assert main(["keys", head]) == main(["keys", node]) == 0
    of_head, of_node = capsys.readouterr().out.split()
    assert main(["keys", head, "--allow", of_node.upper(), "--name", "west"]) == 0
    assert main(["keys", node, "--head", of_head]) == 0
    assert load_head_key(Path(node)) == of_head
    allowed = AllowedKeys(Path(head) / "allowed", now=iter(range(100)).__next__)
    assert allowed.is_allowed(of_node) and not allowed.is_allowed(of_head)
    assert (Path(head) / "allowed" / "west").read_text().strip() == of_node
    assert main(["keys", head, "--remove", "west"]) == 0
    assert not allowed.is_allowed(of_node)
    capsys.readouterr()
    assert main(["keys", head, "--remove", "west"]) == 2
    assert main(["keys", head, "--name", "east"]) == 2
    assert main(["keys", head, "--allow", "x"]) == 2
    assert capsys.readouterr().err.count("srt: ") == 3


def test_files_may_hold_several_keys_and_remarks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [new_keys().public for _ in range(4)]
    text = f"# the räck\n{keys[0]}\n\n{keys[1].upper()}  # second\n"
    (tmp_path / "rack").write_text(text, encoding="utf-8-sig")
    (tmp_path / ".hidden").write_text(keys[2])
    (tmp_path / "bad").write_text(f"nonsense\n{keys[3]}\n")
    (tmp_path / "binary\nsrt: is served").write_bytes(b"\xff" * 64)
    (tmp_path / "long").write_text("#" * MAX_FILE_BYTES + f"\n{keys[2]}\n")
    os.mkfifo(tmp_path / "pipe")
    times = iter(range(100))
    allowed = AllowedKeys(tmp_path, now=lambda: float(next(times)))
    with caplog.at_level(logging.WARNING):
        assert [allowed.is_allowed(key) for key in keys] == [True, True, False, True]
    assert len(caplog.records) == 3  # each fault once, however often it is found
    assert "bad', line 1" in caplog.text and "64 KiB" in caplog.text
    assert "it is not a text" in caplog.text and "binary\\nsrt" in caplog.text
    assert "nonsense" not in caplog.text


def test_strangers_take_little_of_the_heads_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that take long to read are not read for each of them."""
    clock, reads = [0.0], [0]

    def slow(path: Path) -> str:
        clock[0] += 0.02
        reads[0] += 1
        return ""

    monkeypatch.setattr("srt.cluster.keys._read", slow)
    monkeypatch.setattr("srt.cluster.keys.time.perf_counter", lambda: clock[0])
    (tmp_path / "node").write_text("")
    allowed = AllowedKeys(tmp_path, now=lambda: clock[0])
    for _ in range(1000):
        clock[0] += 0.01
        assert not allowed.is_allowed("0" * 64)
    assert 15 <= reads[0] <= 30  # 20 ms, twice a second


def test_who_is_allowed_follows_the_files(tmp_path: Path) -> None:
    clock, key = [0.0], new_keys().public
    allowed = AllowedKeys(tmp_path / "allowed", now=lambda: clock[0])
    assert not allowed.is_allowed(key)  # without the folder nobody is
    allow(tmp_path, key, "node")
    clock[0] += LOOK_INTERVAL_S
    assert allowed.is_allowed(key)
    # As long as before, and within the same tick of the files' clock.
    (tmp_path / "allowed" / "node").write_text(f"{new_keys().public}\n")
    clock[0] += LOOK_INTERVAL_S
    assert not allowed.is_allowed(key)
    # A new one need not wait: who has just written it connects next.
    allow(tmp_path, key, "node")
    clock[0] += LOOK_INTERVAL_S / 5
    assert allowed.is_allowed(key)
    remove(tmp_path, "node")
    clock[0] += LOOK_INTERVAL_S
    assert not allowed.is_allowed(key)


def test_strangers_who_take_all_descriptors_drive_nobody_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    clock, key = [0.0], new_keys().public
    allow(tmp_path, key, "node")
    allowed = AllowedKeys(tmp_path / "allowed", now=lambda: clock[0])
    assert allowed.is_allowed(key)
    for function in ("srt.cluster.keys._read", "os.listdir"):
        with monkeypatch.context() as patches:
            patches.setattr(function, fail)
            clock[0] += LOOK_INTERVAL_S
            assert allowed.is_allowed(key) and not allowed.is_allowed(new_keys().public)
    assert caplog.text.count("Too many open files") == 1
    remove(tmp_path, "node")
    clock[0] += LOOK_INTERVAL_S
    assert not allowed.is_allowed(key)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://127.8.8.8:*"])
def test_without_keys_only_loopback(address: str) -> None:
    require_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        *("tcp://0.0.0.0:1", "tcp://10.0.0.1:1", "tcp://*:1", "tcp://localhost:1", "tcp://[::]:1"),
        *("", "tcp://[::1", "tcp://127.0.0.1:0;10.0.0.1:1", "tcp://127.0.0.1@10.0.0.1:1"),
    ],
)
def test_other_addresses_need_keys(address: str) -> None:
    with pytest.raises(ConfigError, match="without keys"):
        require_loopback(address)


@asynccontextmanager
async def head_of(
    keys: Keys, allowed: AllowedKeys | set[str]
) -> AsyncIterator[tuple[RingSocket, str, int]]:
    """A ROUTER that asks for keys, its address and its port."""
    failures: list[BaseException] = []
    context, tasks = RingContext(), TaskSet(failures.append)
    is_allowed = allowed.__contains__ if isinstance(allowed, set) else allowed.is_allowed
    try:
        tasks.start(Authenticator(context, is_allowed).run())
        router = open_socket(context, zmq.ROUTER)
        serve_with(router, keys)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        router.bind(f"tcp://127.0.0.1:{port}")
        yield router, f"tcp://127.0.0.1:{port}", port
    finally:
        await tasks.close()
        context.destroy()
    assert not failures


def dealer(context: RingContext, address: str, keys: Keys | None, head: str) -> RingSocket:
    found = open_socket(context, zmq.DEALER)
    if keys is not None:
        connect_with(found, keys, head)
    found.connect(address)
    return found


async def test_only_allowed_keys_arrive_and_say_whose_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys, known, unknown = new_keys(), new_keys(), new_keys()
    wrong = Keys(known.public, unknown.secret)  # somebody else's public key
    context = RingContext()
    try:
        async with (
            asyncio.timeout(SOON_S),
            head_of(keys, {known.public}) as (router, address, port),
        ):
            strangers = [
                *(dealer(context, address, who, keys.public) for who in (unknown, wrong, None)),
                dealer(context, address, known, unknown.public),  # takes another for the head
            ]
            for stranger in strangers:
                stranger.send(b"from a stranger")
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(os.urandom(4096))
            while unknown.public not in caplog.text:
                await asyncio.sleep(0.01)
            friend = dealer(context, address, known, keys.public)
            friend.send(b"from a friend", b"with more")
            (peer, text, more), user = await router.receive_from()
            assert (text, bytes(more), user) == (b"from a friend", b"with more", known.public)
            assert router.send(peer, b"answer")
            assert (await friend.receive_from()) == ([b"answer"], "")
    finally:
        context.destroy()
    assert "refused 127.0.0.1" in caplog.text
    assert caplog.text.count(unknown.public) == 1  # though it has tried again and again


async def test_a_removed_key_is_known_by_its_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The handshake is over by then: each message has to be looked at."""
    keys, known = make_keys(tmp_path), new_keys()
    allow(tmp_path, known.public, "node")
    allowed, context = AllowedKeys(tmp_path / "allowed"), RingContext()
    try:
        async with asyncio.timeout(SOON_S), head_of(keys, allowed) as (router, address, _):
            node = dealer(context, address, known, keys.public)
            node.send(b"1")
            assert allowed.is_allowed((await router.receive_from())[1])
            remove(tmp_path, "node")
            while allowed.is_allowed(known.public):
                await asyncio.sleep(0.01)
            node.send(b"2")
            assert (await router.receive_from())[1] == known.public
            late = dealer(context, address, known, keys.public)
            late.send(b"3")
            while known.public not in caplog.text:  # refused
                await asyncio.sleep(0.01)
            node.send(b"4")
            assert (await router.receive_from())[0][1] == b"4"
    finally:
        context.destroy()


async def test_a_key_that_is_allowed_later_gets_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the connection that was refused before: whoever starts first waits."""
    monkeypatch.setattr(curve, "_HANDSHAKE_MS", 50)
    keys, node = make_keys(tmp_path), new_keys()
    allowed, context = AllowedKeys(tmp_path / "allowed"), RingContext()
    try:
        async with asyncio.timeout(SOON_S), head_of(keys, allowed) as (router, address, _):
            dealer(context, address, node, keys.public).send(b"early")
            while node.public not in caplog.text:
                await asyncio.sleep(0.01)
            allow(tmp_path, node.public)
            assert (await router.receive_from())[1] == node.public
    finally:
        context.destroy()


async def test_nobody_is_let_in_without_an_authenticator() -> None:
    keys, known = new_keys(), new_keys()
    context = RingContext()
    try:
        router = open_socket(context, zmq.ROUTER)
        serve_with(router, keys)
        router.bind("tcp://127.0.0.1:*")
        address = router._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        dealer(context, address, known, keys.public).send(b"nobody has asked who I am")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await router.receive()
    finally:
        context.destroy()
