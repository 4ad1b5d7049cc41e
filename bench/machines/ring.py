"""A head on this machine, and agents that have joined it."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.programs.delay import relayed
from srt.cluster.keys import allow, make_keys, set_head_key
from tests.e2e.machines import Machine, join_address, running_machine, wait_replicas
from tests.e2e.server import Server, running_server


@contextmanager
def ring(
    local: int, delays_s: list[float], options: list[str]
) -> Iterator[tuple[Server, list[Machine]]]:
    """A head with local replicas, and an agent with one replica for each of `delays_s`, seconds
    each way (0: without a proxy); their links have keys. All are ready."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        tmp, total = Path(directory), local + len(delays_s)
        words = ["--dp", str(local), *options]
        if delays_s:
            make_keys(tmp / "keys")
            words += ["--remote-replicas", str(len(delays_s)), "--cluster-keys", str(tmp / "keys")]
            words += ["--cluster-bind", "tcp://127.0.0.1:0"]
        head = stack.enter_context(running_server(tmp, *words))
        machines = []
        for number, delay_s in enumerate(delays_s):
            address = join_address(head)
            if delay_s > 0:
                address = stack.enter_context(relayed(address, 2 * delay_s))
            name = f"node{number}"
            keys = ["--keys", str(_keys(tmp, name))]
            node = running_machine(tmp, address, *keys, name=name)
            machines.append(stack.enter_context(node))
            # One after the other: the places are in the agents' order.
            wait_replicas(head, range(local + number + 1), total)
        wait_replicas(head, range(total), total)
        yield head, machines


def _keys(tmp: Path, name: str) -> Path:
    """The keys of an agent that the head lets in."""
    directory = tmp / f"{name}-keys"
    keys = make_keys(directory)
    set_head_key(directory, make_keys(tmp / "keys").public)
    allow(tmp / "keys", keys.public, name)
    return directory
