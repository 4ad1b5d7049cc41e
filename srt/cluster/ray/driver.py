"""`python -m srt.cluster.ray.driver`: the process that asks Ray for actors on its machines.

The launcher keeps it, writes `RayOptions` as a line of JSON to its standard input, and closes that
to end it. Ray keeps the actors for as long as this process is there. It looks at each of them again
and again: a new agent's public key is put where the head allows keys, and then the agent joins.
"""

import logging
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import ray
from ray.util import get_node_ip_address
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from srt.cluster.keys import allow
from srt.cluster.ray.node import Node
from srt.cluster.ray.options import RayOptions, forget_keys, key_name
from srt.ring.actor import EXIT_CONFIG
from srt.ring.log import set_up_logging
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 0.5
_ANSWER_S = 5.0  # an actor answers at once, if it is there
_LEAVE_S = 6.0
_SAY_INTERVAL_S = 30.0
_ANY = {"0.0.0.0": "", "::": "", "*": ""}


def main() -> int:
    """Run until the input ends; returns the exit status."""
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=RayOptions)
    set_up_logging("ray", "info")
    log.info("connecting to Ray")  # it takes a minute to say that nobody answers
    try:
        ray.init(address="auto", namespace="srt", log_to_driver=True, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        log.error(
            "--cluster ray: no Ray cluster can be used: %s; start one with `ray start --head`, or "
            "name one by the variable RAY_ADDRESS",
            " ".join(str(error).split()),
        )
        return EXIT_CONFIG
    try:
        Nodes(options, _reachable(options.join)).run(_has_ended)
    except ValueError as error:
        log.error("--replica-resources: Ray refuses them: %s", " ".join(str(error).split()))
        return EXIT_CONFIG
    finally:
        ray.shutdown()
    return 0


class Nodes:
    """The actors of a ring, one for each replica, in one placement group."""

    def __init__(self, options: RayOptions, join: str) -> None:
        self._options, self._join = options, join
        self._group: Any = None
        self._actors: list[Any] = []
        self._asked: dict[int, tuple[Any, float]] = {}  # answers to come, and since when
        self._said: dict[int, str] = {}

    def run(self, has_ended: Callable[[float], bool]) -> None:
        """Start all actors, and look at them until `has_ended`, which waits so many seconds."""
        bundles = [self._options.resources] * self._options.replicas
        self._group = placement_group(bundles, strategy="SPREAD")
        try:
            waited_s = 0.0
            while not self._group.wait(timeout_seconds=_LOOK_INTERVAL_S):
                if waited_s % _SAY_INTERVAL_S < _LOOK_INTERVAL_S:
                    log.warning("waiting for Ray: %d times %s", len(bundles), bundles[0])
                waited_s += _LOOK_INTERVAL_S
                if has_ended(0.0):
                    return
            self._actors = [self._started(number) for number in range(self._options.replicas)]
            while not has_ended(_LOOK_INTERVAL_S):
                self._look()
        finally:
            self._end()

    def _started(self, number: int) -> Any:
        more = dict(self._options.resources)
        strategy = PlacementGroupSchedulingStrategy(self._group, number)
        wanted: dict[str, Any] = {"num_cpus": more.pop("CPU", 0), "num_gpus": more.pop("GPU", 0)}
        if "memory" in more:
            wanted["memory"] = more.pop("memory")
        actor = ray.remote(Node).options(
            **wanted, resources=more, max_restarts=-1, scheduling_strategy=strategy
        )
        options = self._options
        return actor.remote(self._join, options.head, options.own, options.log_level)

    def _look(self) -> None:
        """Ask all actors how their agents are. One that does not answer is being started again; the
        others do not wait for it."""
        now = time.monotonic()
        for number, actor in enumerate(self._actors):
            if number not in self._asked:
                self._asked[number] = actor.state.remote(), now
        answers = [answer for answer, _ in self._asked.values()]
        there, _ = ray.wait(answers, num_returns=len(answers), timeout=_LOOK_INTERVAL_S)
        for number, (answer, since) in [*self._asked.items()]:
            if answer in there:
                del self._asked[number]
                self._take(number, answer)
            elif now - since > _ANSWER_S:
                self._say(number, "its actor is not there, or does not answer")

    def _take(self, number: int, answer: Any) -> None:
        """Let a new agent of this actor join."""
        try:
            state = ray.get(answer)
            if state["is_waiting"]:
                self._allow(number, state["public"])
                log.info("replica %d of Ray joins from %s", number, state["host"])
                self._actors[number].join.remote(state["public"])
        except (ray.exceptions.RayActorError, ConfigError) as error:
            is_lost = isinstance(error, ray.exceptions.RayActorError)
            self._say(number, "its actor is lost" if is_lost else str(error))
            return
        self._say(number, f"its agent has ended: {state['last']}" if state["last"] else "")

    def _say(self, number: int, what: str) -> None:
        if what and what != self._said.get(number):
            log.warning("replica %d of Ray: %s", number, what)
        self._said[number] = what

    def _allow(self, number: int, public: str) -> None:
        if public:
            allow(Path(self._options.keys), public, key_name(self._join, number))

    def _end(self) -> None:
        """End all agents, and then their actors, which Ray would end without a warning."""
        # First: Ray does not answer if its head is lost.
        forget_keys(self._options)
        leaving = [actor.leave.remote(_LEAVE_S) for actor in self._actors]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S + 1.0)
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._group)


def _reachable(join: str) -> str:
    """The address at which other machines find a port that listens on all addresses."""
    parts = urlsplit(join)
    if (parts.hostname or "") not in _ANY:
        return join
    host = get_node_ip_address()
    host = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))


def _has_ended(wait_s: float) -> bool:
    """Whether the launcher has closed the input, for which this waits so long."""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


if __name__ == "__main__":
    sys.exit(main())
