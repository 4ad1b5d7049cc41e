"""The launcher's part of Ray: it keeps the process that talks to Ray, for as long as it serves.

That process is one of its own, since Ray brings threads, signal handlers and memory; when it is
lost, because Ray's head is, another one asks for new actors as soon as there is a Ray again.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from srt.args import ServerArgs
from srt.cluster.door import address_in
from srt.cluster.keys import is_loopback, load_keys
from srt.cluster.ray.options import RayOptions, forget_keys, own_fields, resources_of
from srt.ring.actor import EXIT_CONFIG
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0
_HEALTHY_AFTER_S = 20.0
_END_S = 10.0
_LOOK_S = 0.1


async def keep_nodes(args: ServerArgs, directory: Path) -> None:
    """Keep Ray's actors until cancelled, for the ring of `directory`. Raises ConfigError if Ray
    cannot be used at the first try."""
    join = await _address(directory)
    resources = resources_of(args.replica_resources)
    head = "" if args.cluster_insecure else load_keys(Path(args.cluster_keys)).public
    options = RayOptions(
        join,
        head,
        args.cluster_keys,
        args.remote_replicas,
        resources,
        own_fields(args, resources),
        args.log_level,
    )
    if is_loopback(join):
        log.warning(
            "--cluster ray: agents of other machines cannot reach %s: --cluster-bind names an "
            "address of this one",
            join,
        )
    try:
        await _keep_driver(options)
    finally:
        forget_keys(options)  # the process below may have been killed


async def _keep_driver(options: RayOptions) -> None:
    """Keep the process that talks to Ray. Raises ConfigError."""
    pause_s, has_been_there = _FIRST_PAUSE_S, False
    while True:
        started = time.monotonic()
        status = await _run(options)
        if status == EXIT_CONFIG and not has_been_there:
            raise ConfigError("--cluster ray: Ray cannot start the agents, as is said above")
        if time.monotonic() - started > _HEALTHY_AFTER_S:
            pause_s = _FIRST_PAUSE_S
        has_been_there = True
        log.warning("the process that talks to Ray has ended (%d); another one is started", status)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


async def _address(directory: Path) -> str:
    """Where agents join, once the hub has written it."""
    while True:
        if join := address_in(directory):
            return join
        await asyncio.sleep(_LOOK_S)


async def _run(options: RayOptions) -> int:
    """Run the driver to its end; cancelled, it ends its actors first."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "srt.cluster.ray.driver"),
        stdin=subprocess.PIPE,
        stdout=sys.stderr,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,  # Ctrl-C is the launcher's
    )
    assert process.stdin is not None
    try:
        with suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(options) + b"\n")
            await process.stdin.drain()
        return await process.wait()
    finally:
        process.stdin.close()
        if process.returncode is None:
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
                await process.wait()
