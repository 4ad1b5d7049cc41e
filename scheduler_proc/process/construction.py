"""What a scheduler is made of: its executor, its core, and what its grammars share."""

import logging
import os
from dataclasses import fields
from typing import NamedTuple

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step_cost import TimedSteps
from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.base import Executor, seeing
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.grammar.store import Shared
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.process.warm_up import warm_up
from scheduler_proc.trace.recorded import RecordedScheduler
from srt.args import ServerArgs, places_of
from srt.files.model_files import resolve_model
from srt.files.tokenizer import load_plain_tokenizer
from srt.files.vocab import served_vocab
from srt.machine import usable_cpus
from srt.sizing import running_within
from srt.wire.errors import ConfigError
from srt.wire.ring_state import SchedulerFacts

log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """An executor with its model, and the steps that have warmed it up."""

    executor: Executor
    steps: TimedSteps


def load_executor(args: ServerArgs, threads: int | None) -> Loaded:
    """The executor, with the model, warmed up; None: as many threads as there are cores."""
    names = {field.name for field in fields(ExecutorOptions)} & set(args.__struct_fields__)
    same = {name: getattr(args, name) for name in names}
    options = ExecutorOptions(
        **same
        | {
            "max_total_tokens": args.pool_tokens,
            "replicas": args.dp,
            "num_threads": threads,
            "speculative_max_tokens": same["speculative_max_tokens"] * (speculative(args) != "off"),
            "sees": args.limit_media > 0,
        }
    )
    executor = make_executor(args.executor, resolve_model(args.model), options)
    return Loaded(executor, warm_up(executor, core_config(args, executor)))


def make_core(args: ServerArgs, replica: int, incarnation: int, executor: Executor) -> Scheduler:
    """The core; recorded if a trace is asked for, each replica in a file of its own. After a
    restart the incarnation is appended to its name, so that the trace of a crash survives it."""
    config, path, dp = core_config(args, executor), args.record_trace, places_of(args)
    if not path:
        return Scheduler(config, incarnation)
    path = path if dp == 1 else f"{path}.{replica}"
    path = f"{path}.{incarnation}" if incarnation >= 2 * dp else path
    try:
        return RecordedScheduler(config, incarnation, path)
    except OSError as error:
        raise ConfigError(f"--record-trace {path}: cannot be written ({error.strerror})") from error


def shared_by_grammars(args: ServerArgs) -> Shared:
    """What all grammars need; made in their thread, before the first is loaded."""
    vocab, retokeniser = served_vocab(args), None
    if not args.disable_jump_forward:
        encoder = load_plain_tokenizer(resolve_model(args.model, args.tokenizer))
        if encoder.cuts_words:
            retokeniser = Retokeniser(vocab, encoder)
        else:
            log.warning("jump-forward is off: the tokenizer does not encode word by word")
    return Shared(TokenVocabulary.from_vocab(vocab), retokeniser)


def facts_of(executor: Executor) -> SchedulerFacts:
    """What the start-up log says of the executor."""
    return SchedulerFacts(
        executor=executor.name,
        dtype=str(executor.dtype).removeprefix("torch."),
        weight_bytes=executor.weight_bytes,
        max_total_tokens=executor.max_total_tokens,
        pool_bytes=executor.pool_bytes,
    )


def speculative(args: ServerArgs) -> str:
    """What is guessed. How many tokens a row has depends on times then, and so does its sums' order
    on some devices: unless guesses are asked for, results that are to be the same do without. So
    do CUDA devices, where nobody has measured whether they pay."""
    does_without = args.deterministic or args.is_cuda
    return "off" if does_without and args.speculative == "auto" else args.speculative


def core_config(args: ServerArgs, executor: Executor) -> SchedulerConfig:
    """The core's limits for these arguments and this model."""
    seed, running = args.random_seed, args.max_running_requests
    if args.planned_bytes and executor.max_total_tokens < args.max_total_tokens:
        running = running_within(args, executor.max_total_tokens, executor.context_len)
    return SchedulerConfig(
        max_total_tokens=executor.max_total_tokens,
        context_len=executor.context_len,
        vocab_size=executor.vocab_size,
        max_running_requests=running,
        chunked_prefill_size=args.chunked_prefill_size,
        step_target_s=args.step_target_ms / 1000,
        schedule_policy=args.schedule_policy,
        max_wait_s=args.schedule_max_wait,
        fair_wait_s=args.fair_wait,
        disable_radix_cache=args.disable_radix_cache,
        speculative=speculative(args),
        speculative_max_tokens=args.speculative_max_tokens,
        media=None if (sees := seeing(executor)) is None else sees.media_facts,
        media_cache_bytes=args.media_cache_mb * 1_000_000,
        block_model=args.fingerprint if places_of(args) > 1 or args.kv_events else None,
        random_seed=seed if seed >= 0 else int.from_bytes(os.urandom(8), "little"),
    )


def take_share(replica: int, replicas: int, threads: int) -> int | None:
    """Pin this process to CPUs of its own, `threads` of them (0: as many as there are for each), if
    there are enough for all replicas: engines whose threads spin on a shared core halve each other.
    Returns the threads to compute with; None: all CPUs."""
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
