"""Which CPUs a replica's scheduler uses: engines whose threads spin on a shared core halve each
other."""

import logging
import os

from srt.machine import usable_cpus

log = logging.getLogger(__name__)


def take_share(replica: int, replicas: int, threads: int) -> int | None:
    """Pin this process to CPUs of its own, `threads` of them (0: as many as there are for each), if
    there are enough for all replicas. Returns the threads to compute with; None: all CPUs."""
    if replicas == 1:
        return threads or None
    cpus = sorted(os.sched_getaffinity(0))
    share = threads or max(1, usable_cpus() // replicas)
    if share * replicas > len(cpus):
        log.warning(
            "%d replicas of %d threads share %d CPUs: they slow each other down",
            replicas,
            share,
            len(cpus),
        )
        return share
    own = cpus[replica * share : (replica + 1) * share]
    os.sched_setaffinity(0, own)
    log.info("on CPUs %s", ", ".join(map(str, own)))
    return share
