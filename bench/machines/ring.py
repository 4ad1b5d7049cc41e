"""A head on this machine, and agents that have joined it."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.programs.delay import relayed
from srt.cluster.keys import make_keys
from tests.e2e.machines import Machine, join_address, let_in, running_machine, wait_replicas
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
            keys = let_in(tmp / "keys", tmp / f"{name}-keys", name)
            node = running_machine(tmp, address, *keys, name=name)
            machines.append(stack.enter_context(node))
            # One after the other: the places are in the agents' order.
            wait_replicas(head, range(local + number + 1), total)
        wait_replicas(head, range(total), total)
        yield head, machines
