"""A model in this process, without a server: constrained outputs of the scheduler core, and how
probable texts are to the model."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from scheduler_proc.core.counters import Counters
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.base import Executor
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.files.model_files import resolve_model
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import Vocab, load_vocab
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish, pack_ids, unpack_floats, unpack_ids
from srt.wire.ring_messages import TokenBatch, TokenizedReq
from srt.wire.sampling import Scoring

POOL = 16384


class Startable(Protocol):
    """What makes grammars for outputs, as a CompiledGrammar does."""

    def start(self) -> Grammar: ...


class Job(Struct):
    """One generation. `jumps` are (byte position of the start, tokens replaced)."""

    prompt: np.ndarray
    grammar: Startable
    sampling: FilledParams
    ids: list[int] = []
    jumps: list[tuple[int, int]] = []
    finish: Finish | None = None


class Laboratory:
    """A model, its tokenizer, and cores that share one executor: the native one, or what
    `stands_in` for it."""

    def __init__(self, model: str, stands_in: Callable[[Vocab], Executor] | None = None) -> None:
        files = resolve_model(model)
        self.vocab = load_vocab(files)
        self.tokenizer = load_tokenizer(files)
        self.plain = load_plain_tokenizer(files)
        self.vocabulary = TokenVocabulary.from_vocab(self.vocab)
        self.executor: Executor
        if stands_in is None:
            self.executor = make_executor("native", files, ExecutorOptions(max_total_tokens=POOL))
        else:
            self.executor = stands_in(self.vocab)
        self._retokeniser = Retokeniser(self.vocab, self.plain)

    def text(self, ids: list[int]) -> bytes:
        """The bytes of an output, without EOS."""
        return b"".join([self.vocab.token_bytes[i] for i in ids if i not in self.vocab.special_ids])

    def generate(self, jobs: list[Job], **config: Any) -> Counters:
        """Run them together on a core that is set up so; fills ids, jumps and finish."""
        core = self._core(**config)
        for i, job in enumerate(jobs):
            job.ids, job.jumps = [], []
            wire = TokenizedReq(
                client=b"c",
                rid=str(i),
                incarnation=0,
                input_ids=pack_ids(job.prompt),
                sampling=job.sampling,
                eos_ids=list(self.vocab.eos_ids),
            )
            core.add(wire, 0.0, job.grammar.start(), self._retokeniser)
        handles: dict[int, Job] = {}
        for batch in self._batches(core):
            handles.update((s.handle, jobs[int(s.rid)]) for s in batch.starts)
            self._collect(batch, handles)
        return core.state.counters

    def _collect(self, batch: TokenBatch, jobs: dict[int, Job]) -> None:
        ids, at = unpack_ids(batch.ids).tolist(), 0
        drops = {column: drop for column, drop, _ in batch.jumps}
        for column, (handle, count) in enumerate(zip(batch.handles, batch.counts, strict=True)):
            job = jobs[handle]
            if column in drops:
                del job.ids[len(job.ids) - drops[column] :]
                job.jumps.append((len(self.text(job.ids)), drops[column]))
            job.ids += ids[at : at + count]
            at += count
        for end in batch.ends:
            jobs[end.handle].finish = end.finish

    def scores(self, pairs: list[tuple[np.ndarray, bytes]]) -> list[float]:
        """Log-probability of each text's canonical tokens after its prompt, in nats per byte."""
        core, sums = self._core(), [0.0] * len(pairs)
        for i, (prompt, text) in enumerate(pairs):
            ids = np.concatenate((prompt, self.plain.split(text.decode()).ids)).astype(np.int32)
            wire = TokenizedReq(
                client=b"c",
                rid=str(i),
                incarnation=0,
                input_ids=pack_ids(ids),
                sampling=FilledParams(max_new_tokens=0),
                scoring=Scoring(start=len(prompt)),
            )
            core.add(wire, 0.0)
        owners: dict[int, int] = {}
        for batch in self._batches(core):
            owners.update((s.handle, int(s.rid)) for s in batch.starts)
            for chunk in batch.prompt_logprobs:
                sums[owners[chunk.handle]] += float(unpack_floats(chunk.logprobs).sum())
        return [total / len(text) for total, (_, text) in zip(sums, pairs, strict=True)]

    def _core(self, **config: Any) -> Scheduler:
        defaults: dict[str, Any] = {"max_total_tokens": POOL, "max_running_requests": 16}
        return Scheduler(
            SchedulerConfig(
                context_len=self.executor.context_len,
                vocab_size=self.executor.vocab_size,
                **defaults | config,
            )
        )

    def _batches(self, core: Scheduler) -> Iterator[TokenBatch]:
        """What the core reports, step by step, until it has no work."""
        while core.has_work:
            plan = core.prepare(0.0)
            step = None if plan is None else core.seal(plan)
            if step is not None:
                step.finalize(None)
                core.commit(step, self.executor.run(step.batch))
            batch = core.take_output(0.0)
            if batch is not None:
                yield batch


def is_whole(job: Job) -> bool:
    return job.finish is not None and job.finish.type == "stop"
