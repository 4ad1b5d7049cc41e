"""The compile worker for `bench.grammar`, in a process of its own as in a server: requests and
answers go through a pipe instead of the ring's sockets.
"""

import asyncio
import gc
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

from scheduler_proc.grammar.cache import ArtefactFolder, naming_of
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.grammar.worker.actor import NICENESS
from scheduler_proc.grammar.worker.children import Children
from scheduler_proc.grammar.worker.job import Limits, Outcome
from scheduler_proc.grammar.worker.maker import ArtefactMaker
from scheduler_proc.grammar.worker.service import CompileService, Rules
from srt.files.model_files import resolve_model
from srt.files.vocab import load_vocab
from srt.tasks import TaskSet
from srt.wire.constraint import Constraint, artefact_key
from srt.wire.ring_messages import CompileReply, CompileReq

_LIMITS = Limits(30.0, 2**30, wall_s=300.0)
_FOLDER_BYTES = 2**29


class WorkerProcess:
    """Starts with the object; `close` ends it."""

    def __init__(self, model: str, directory: Path) -> None:
        """Artefacts are in folders of `directory`."""
        self.grammars, self.cache = _folders(directory)
        self._vocabulary = vocabulary_of(model)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, model, directory))
        self._process.start()
        self._pipe.recv()  # it is warm

    def ask(self, constraint: Constraint) -> CompileReply:
        self._pipe.send(constraint)
        reply = self._pipe.recv()
        assert isinstance(reply, CompileReply)
        return reply

    def forget(self, constraint: Constraint) -> None:
        for folder in (self.grammars, self.cache):
            folder.discard(_key(constraint, self._vocabulary))

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def vocabulary_of(model: str) -> TokenVocabulary:
    return TokenVocabulary.from_vocab(load_vocab(resolve_model(model)))


def _folders(directory: Path) -> tuple[ArtefactFolder, ArtefactFolder]:
    """The ring's folder and the cache's."""
    grammars, cache = directory / "grammars", directory / "cache"
    return ArtefactFolder(grammars, _FOLDER_BYTES), ArtefactFolder(cache, _FOLDER_BYTES)


def _key(constraint: Constraint, vocabulary: TokenVocabulary) -> str:
    fingerprint = vocabulary.fingerprint
    naming = naming_of(backend="fsm", vocabulary=fingerprint, version="bench")
    return artefact_key(constraint, naming)


# ---- in its process --------------------------------------------------------------------------


def _serve(pipe: Connection, model: str, directory: Path) -> None:
    os.nice(NICENESS)
    vocabulary = vocabulary_of(model)
    grammars, cache = _folders(directory)
    maker = ArtefactMaker(GrammarCompiler(vocabulary), vocabulary, grammars, cache)
    maker.rehearse()
    gc.collect()
    gc.freeze()
    asyncio.run(_answer(pipe, vocabulary, grammars, maker))


async def _answer(
    pipe: Connection, vocabulary: TokenVocabulary, grammars: ArtefactFolder, maker: ArtefactMaker
) -> None:
    """Answers until the other end of the pipe is closed."""
    children = Children(maker, _LIMITS, grammars.remove_temporary)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    tasks = TaskSet(over.set_exception)

    async def run(key: str, constraint: Constraint) -> Outcome:
        return await children.run(maker.job(key, constraint))

    def on_question() -> None:
        try:
            service.ask(CompileReq(0, 0, pipe.recv()))
        except EOFError:
            over.set_result(None)

    rules = Rules(
        workers=1,
        seconds=_LIMITS.seconds,
        wall_s=_LIMITS.wall_s,
        mib=1024,
        max_wait_s=60.0,
        quantum_s=_LIMITS.seconds,
    )
    service = CompileService(
        grammars, lambda constraint: _key(constraint, vocabulary), run, pipe.send, rules, tasks
    )
    children.prepare()
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), on_question)
    pipe.send("warm")
    try:
        await over
    finally:
        loop.remove_reader(pipe.fileno())
        await tasks.close()
        service.close()
        await children.close()
