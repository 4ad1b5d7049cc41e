"""`python -m srt.launch`: parse the arguments, start the supervisor, say where the server is."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import uvloop
from msgspec.structs import replace

from srt.args import ServerArgs
from srt.cluster.fingerprint import fingerprint_of_args
from srt.cluster.ray.options import check_ray
from srt.files.model_files import resolve_model
from srt.files.vocab import served_vocab
from srt.gateway.limits.keys import Keys
from srt.hub import with_model_here
from srt.options.settings import PROGRAM, as_toml, read_settings
from srt.ring.log import paint, set_up_logging
from srt.ring.supervisor import Supervisor
from srt.sizing import Plan, sized, with_choices
from srt.trial import check_files, check_level, check_weights, try_tokenizer
from srt.wire.errors import ConfigError
from srt.wire.ring_state import SchedulerFacts

log = logging.getLogger(__name__)

PARENT_FD_VARIABLE = "SRT_PARENT_FD"


def main(argv: Sequence[str] | None = None, prog: str = PROGRAM) -> int:
    """The launcher, which calls itself `prog`; returns the process's exit status."""
    settings = None
    try:
        settings = read_settings(sys.argv[1:] if argv is None else argv, os.environ, prog)
        set_up_logging("launcher", settings.args.log_level)
        for warning in settings.warnings:
            log.warning("%s", warning)
        if settings.print_config:
            print(as_toml(settings), end="")
            return 0
        # Taken out of the environment, which the server's processes inherit.
        parent = os.environ.pop(PARENT_FD_VARIABLE, "")
        check_level(settings.args)
        check_ray(settings.args)
        args = with_model_here(settings.args)
        _try(args)
        args = replace(args, fingerprint=fingerprint_of_args(args))
        args, plan = sized(with_choices(args, settings.sources), settings.sources)
        return uvloop.run(_serve(args, plan, parent))
    except ConfigError as error:
        print(f"srt: {settings.sourced(error) if settings else error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while a model is brought; what has arrived is kept
        return 128 + signal.SIGINT


def _try(args: ServerArgs) -> None:
    """Raise ConfigError if a look at the model says that it cannot be used: in place of several
    parts, which would all end with that."""
    files = resolve_model(args.model, args.tokenizer)
    check_files(files)
    check_weights(files)
    try_tokenizer(files)
    if args.max_model_len:
        served_vocab(args)


async def _serve(args: ServerArgs, plan: Plan | None, parent: str) -> int:
    started = time.monotonic()
    supervisor = Supervisor(args)
    if plan is not None:
        plan.log()
    log.info("starting %s (ring %s)", args.model_name, supervisor.ring.directory)
    # Once the supervisor handles signals: the ring's directory, which it removes, is there already.
    if parent:
        asyncio.get_running_loop().call_soon(_stop_with_parent, int(parent))
    serving = supervisor.run(lambda ready: _announce(args, ready, time.monotonic() - started))
    if args.cluster != "ray":
        return await serving
    from srt.cluster.ray.launching import keep_nodes  # here: few servers need it

    return await _serve_with(keep_nodes(args, supervisor.ring.directory), supervisor, serving)


async def _serve_with(
    nodes: Coroutine[Any, Any, None], supervisor: Supervisor, serving: Coroutine[Any, Any, int]
) -> int:
    """Serve, and keep the actors of other machines meanwhile: the end of either is that of both.
    Raises the error of the nodes."""
    keeping = asyncio.create_task(nodes)
    keeping.add_done_callback(lambda _: supervisor.request_stop())
    try:
        return await serving
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


def _announce(args: ServerArgs, supervisor: Supervisor, elapsed_s: float) -> None:
    schedulers, tokenizer = supervisor.scheduler_facts, supervisor.tokenizer_facts
    assert tokenizer is not None
    log.info("model   %s (%s)", paint(args.model_name, "1"), resolve_model(args.model).path)
    for scheduler in schedulers[:1]:
        _announce_scheduler(scheduler, tokenizer.context_len)
    if args.remote_replicas:
        from srt.cluster.door import address_in  # here, as above

        log.info("agents  %s", address_in(supervisor.ring.directory))
    log.info("ring    ipc://%s", supervisor.ring.directory)
    if supervisor.url and is_open_to_others(args, supervisor.url):
        log.warning(
            "--host %s and no API keys: whoever reaches this port can use the server, and pause, "
            "abort and flush like an admin; --api-key-file makes it ask for keys, and --host "
            "127.0.0.1 keeps it to this machine. Clients may call it by addresses, localhost, this "
            "machine's name and the names of --allowed-hosts",
            args.host,
        )
    where = paint(supervisor.url, "1;32") if supervisor.url else "on the ring only"
    if supervisor.url and not args.no_ui:
        log.info("page    %s", page_address(args, supervisor.url, supervisor.ring.read_page_key()))
    log.info("ready   %s after %.1f s", where, elapsed_s)


def _announce_scheduler(scheduler: SchedulerFacts, context_len: int) -> None:
    log.info(
        "        %s executor, %s, weights %.0f MiB, context %d tokens",
        scheduler.executor,
        scheduler.dtype,
        scheduler.weight_bytes / 2**20,
        context_len,
    )
    log.info(
        "pool    %d tokens, at most %.0f MiB",
        scheduler.max_total_tokens,
        scheduler.pool_bytes / 2**20,
    )


def page_address(args: ServerArgs, url: str, page_key: str) -> str:
    """The address of the server's page, with the key that opens all of it in its fragment, which
    browsers do not send. A server that has admins' keys is opened by these."""
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    has_admins = Keys(args.api_keys(), args.admin_keys()).has_admins
    return f"{url}/" if has_admins else f"{url}/#key={page_key}"


def is_open_to_others(args: ServerArgs, url: str) -> bool:
    """Whether other machines may reach the server that listens at `url`, and it asks for no key."""
    is_local = ip_address(urlsplit(url).hostname or "").is_loopback
    return not is_local and Keys(args.api_keys(), args.admin_keys()).is_open


def _stop_with_parent(fd: int) -> None:
    """Stop when the pipe closes that a parent (`srt.Engine`) gave us."""

    def watch() -> None:
        os.read(fd, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-pipe", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
