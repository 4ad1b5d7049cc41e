"""`python -m srt.cluster.ray.kept_agent`: an agent that ends with the process that keeps it.

That process writes to its standard input: first a line of JSON, `KeptOptions`, and once the head
allows the key an empty line, on which the agent joins. The end of the input ends the agent. It
answers with its public key, a line of its standard output: the pair is new, and the secret key is
in a file only until the agent has read it, since Ray may end processes at any moment.
"""

import asyncio
import ctypes
import logging
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from msgspec import Struct

from srt.cluster.agent import Agent, AgentOptions
from srt.cluster.keys import make_keys, set_head_key
from srt.cluster.schedulers import GivenUp
from srt.ring.actor import EXIT_CONFIG
from srt.ring.log import set_up_logging
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


class KeptOptions(Struct, frozen=True):
    """The address that the agent joins, the `head`'s public key ("": without keys), and its `own`
    fields of ServerArgs."""

    join: str
    head: str
    own: dict[str, Any] = {}
    log_level: str = "info"


def main() -> int:
    """Run the agent; returns its exit status."""
    # For the time before the thread below runs.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=KeptOptions)
    set_up_logging("agent", options.log_level)
    try:
        agent, public = _agent(options)
        sys.stdout.write(f"{public}\n")
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads more than this line
        if not sys.stdin.buffer.readline():
            return 0
        return uvloop.run(_run(agent))
    except ConfigError as error:
        log.error("%s", error)
        return EXIT_CONFIG
    except GivenUp as error:
        log.error("%s", error)
        return 1


def _agent(options: KeptOptions) -> tuple[Agent, str]:
    """An agent, and its public key; "" without keys."""
    if not options.head:
        return Agent(AgentOptions(options.join, None, own=options.own)), ""
    with tempfile.TemporaryDirectory(prefix="srt-agent-") as name:
        public = make_keys(Path(name)).public
        set_head_key(Path(name), options.head)
        return Agent(AgentOptions(options.join, name, own=options.own)), public


async def _run(agent: Agent) -> int:
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(0)  # it handles signals from here on
    threading.Thread(target=_end_with_input, name="input", daemon=True).start()
    return await running


def _end_with_input() -> None:
    """End the agent, as somebody would who stops it, when nobody keeps it any more."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.exit(status)
