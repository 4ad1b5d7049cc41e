"""Where KV events may be published, and the addresses of the replicas."""

import pytest

from srt.kv_addresses import address_of, check_kv_addresses, path_of
from srt.wire.errors import ConfigError
from tests.srt.options.command_lines import parse_args


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--kv-events", "tcp://0.0.0.0:5557"], "--kv-events tcp://0.0.0.0:5557: .*-public"),
        (["--kv-events", "tcp://*:5557"], "--kv-events .*--kv-events-public"),
        (["--kv-events", "tcp://[::]:5557"], "--kv-events .*--kv-events-public"),
        (["--kv-events", "tcp://eth0:5557"], "--kv-events .*--kv-events-public"),
        (["--kv-events", "tcp://10.0.0.5:5557"], "--kv-events .*--kv-events-public"),
        (["--kv-events", "tcp://127.0.0.1:0"], "ports are 1 to 65535"),
        (["--kv-events", "tcp://127.0.0.1:65536"], "ports are 1 to 65535"),
        (["--kv-events", "tcp://127.0.0.1"], "must be tcp://HOST:PORT"),
        (["--kv-events", "127.0.0.1:5557"], "must be tcp://HOST:PORT"),
        (["--kv-events", "inproc://blocks"], "must be tcp://HOST:PORT"),
        (["--kv-events", "ipc://blocks"], "absolute path"),
        (["--kv-events", "ipc://@blocks"], "absolute path"),  # every user could connect
        (["--kv-events", f"ipc:///{'x' * 107}"], "at most 107 bytes"),
        (["--kv-events-replay", "ipc:///run/replay"], "--kv-events-replay needs --kv-events"),
        (["--kv-events", "ipc:///a", "--kv-events-replay", "ipc:///a"], "--kv-events-replay ipc"),
        (
            ["--kv-events", "tcp://127.0.0.1:5557", "--kv-events-replay", "tcp://[::1]:5557"],
            "--kv-events-replay tcp",
        ),
        (
            ["--kv-events", "ipc:///a", "--kv-events-replay", "tcp://*:5558"],
            "--kv-events-replay .*--kv-events-public",
        ),
        (["--kv-events", "ipc:///a", "--disable-radix-cache"], "--kv-events has nothing"),
        (["--kv-events-topic", "x" * 257], "--kv-events-topic"),
        (["--kv-events-topic", "two\nlines"], "--kv-events-topic"),
    ],
)
def test_what_is_refused_is_named(options: list[str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse_args(options)


@pytest.mark.parametrize(
    "events",
    ["tcp://127.0.0.1:5557", "tcp://127.8.8.8:1", "tcp://[::1]:65535", "tcp://localhost:5557"],
)
def test_this_machine_is_allowed(events: str) -> None:
    args = parse_args(["--kv-events", events, "--kv-events-replay", "ipc:///run/replay"])
    assert (args.kv_events, args.kv_events_topic) == (events, "kv-events")


def test_other_machines_are_allowed_if_asked_for() -> None:
    args = parse_args(["--kv-events", "tcp://*:5557", "--kv-events-public"])
    assert args.kv_events_public


def test_replicas_have_addresses_of_their_own() -> None:
    assert address_of("tcp://127.0.0.1:5557", 0) == "tcp://127.0.0.1:5557"
    assert address_of("tcp://[::1]:5557", 3) == "tcp://[::1]:5560"
    assert address_of("tcp://localhost:5557", 1) == "tcp://127.0.0.1:5558"
    assert address_of("ipc:///run/blocks", 0) == "ipc:///run/blocks"
    assert address_of("ipc:///run/blocks", 2) == "ipc:///run/blocks_dp2"
    assert path_of("ipc:///run/blocks") == "/run/blocks"
    assert path_of("tcp://127.0.0.1:5557") == ""


def test_every_replica_must_find_room() -> None:
    events, replay = "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5559"
    check_kv_addresses(events, replay, public=False, replicas=2)
    with pytest.raises(ConfigError, match=r"--kv-events-replay .* each replica needs a port"):
        check_kv_addresses(events, replay, public=False, replicas=3)
    check_kv_addresses("tcp://127.0.0.1:65535", "", public=False)
    with pytest.raises(ConfigError, match="one for each replica"):
        check_kv_addresses("tcp://127.0.0.1:65535", "", public=False, replicas=2)
    path = f"ipc:///{'x' * 106}"
    check_kv_addresses(path, "", public=False)
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        check_kv_addresses(path, "", public=False, replicas=2)
