"""`bench.machines` in a short form: what it prints, and the proxy that it delays a link with."""

import socket
import threading

import pytest

from bench.cpu_time import seconds_of
from bench.machines.__main__ import main
from bench.programs.delay import relayed


def test_a_proxy_hands_on_whatever_it_sees() -> None:
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with relayed(address, 0.002, seen.extend) as proxy:
            port = int(proxy.rsplit(":", 1)[1])
            with socket.create_connection(("127.0.0.1", port), timeout=10) as near:
                far, _ = listener.accept()
                with far:
                    near.sendall(b"there")
                    assert far.recv(100) == b"there"
                    far.sendall(b"and back")
                    assert near.recv(100) == b"and back"
    assert bytes(seen) == b"thereand back"
    assert not [thread for thread in threading.enumerate() if thread.name == "proxy"]


def test_seconds_of_no_process() -> None:
    assert seconds_of(2**22 + 1) == 0.0


@pytest.mark.slow
def test_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--batch", "2", "--rounds", "2", "--outputs", "8", "--delay-ms", "5"]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert [row[0].strip() for row in rows[2:]] == [
        *("local", "local, again", "agent", "agent, delayed")
    ]
    hub, agent = ([float(row[column]) for row in rows[2:]] for column in (9, 10))
    # Tokens pass the hub and the agent; of local ones nothing does.
    assert agent[:2] == [0.0, 0.0] and min(agent[2:]) > 0.0 and min(hub[2:]) > 0.0


@pytest.mark.slow
def test_hit_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hits", "--workloads", "fewshot", "--turns", "1", "--scale", "0.25"]) == 0
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")[1:-1]]
    assert row[0] == "fewshot" and float(row[1]) > 50.0 and float(row[4]) > 50.0
    assert row[-1] == "0"
