"""The scheduler's compiled grammars: mapped from the ring's directory when first needed, kept by
use within a bound of bytes, and shared by all requests with the same constraint.

The scheduler's actor asks from its loop; loading runs in a thread of its own, so that neither the
loop nor the steps wait for it.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from scheduler_proc.grammar.artefact import Artefact, read_artefact
from scheduler_proc.grammar.base import CompiledGrammar, Grammar, GrammarError
from scheduler_proc.grammar.closing.chain import Closing
from scheduler_proc.grammar.closing.witness import WitnessFinder
from scheduler_proc.grammar.healed import HealedGrammar
from scheduler_proc.grammar.regex import compile_free
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.wire.constraint import free_key_text

log = logging.getLogger(__name__)

Loader = Callable[[Artefact, TokenVocabulary], CompiledGrammar]

STORE_BYTES = 512 * 2**20
# The bookkeeping of each takes about 3 kB beyond that, and a map, of which Linux allows a process
# 65,530.
STORE_GRAMMARS = 4096


class Shared(NamedTuple):
    """What all grammars of one model need; without a retokeniser there are no jumps."""

    vocabulary: TokenVocabulary
    retokeniser: Retokeniser | None = None


class GrammarStore:
    """Compiled grammars by key. The bound holds for what the store keeps: a grammar that a request
    follows lives on until the request ends."""

    def __init__(
        self,
        make_shared: Callable[[], Shared],
        directory: Path,
        max_bytes: int = STORE_BYTES,
        loader: "Loader | None" = None,
        noted: Callable[[str], AbstractContextManager[None]] | None = None,
    ) -> None:
        """`make_shared` is called once, in the store's thread, before the first load; `noted(key)`,
        if given, lasts as long as one is loaded."""
        self._make_shared = make_shared
        self._shared: Shared | None = None
        self._finder: WitnessFinder | None = None  # made with it
        self._directory = directory
        self._max_bytes = max_bytes
        self._loader = load_compiled if loader is None else loader
        self._noted = noted or nullcontext
        # Oldest use first. A cache of cachetools would ask for their sizes once: these grow.
        self._kept: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._loading: dict[str, asyncio.Future[CompiledGrammar]] = {}
        # Of those that show no states.
        self._completions: WeakKeyDictionary[CompiledGrammar, list[int]] = WeakKeyDictionary()
        self._can_close: WeakSet[CompiledGrammar] = WeakSet()  # of the others
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        """Memory of what is kept; it grows as token masks are computed."""
        return sum(compiled.num_bytes for compiled in self._kept.values())

    def get(self, key: str) -> CompiledGrammar | None:
        """A grammar that is here already."""
        compiled = self._kept.get(key)
        if compiled is not None:
            self._kept.move_to_end(key)
        return compiled

    def warm(self) -> None:
        """Have ready what every load needs, so that the first one does not wait for it."""
        self._thread.submit(self._prepared)

    async def load(self, key: str) -> CompiledGrammar:
        """A grammar, read from its artefact if it is not here, or made if its key says everything.
        However many ask at once, it is read once. Raises ArtefactError if it is missing or damaged,
        GrammarError if its back end does not take it; then the file is removed, so that the
        compiler makes it again. Raises OSError or MemoryError if there is no room for it now."""
        compiled = self.get(key)
        if compiled is not None:
            return compiled
        loading = self._loading.get(key)
        if loading is None:
            loop = asyncio.get_running_loop()
            loading = loop.run_in_executor(self._thread, self._read, key)
            self._loading[key] = loading
            loading.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(loading)

    def healed(self, grammar: Grammar, given: Sequence[int]) -> Grammar:
        """`grammar` for an output that writes the tokens `given` of its prompt again first."""
        assert self._shared is not None  # `grammar` was made with it
        return HealedGrammar(grammar, given, self._shared.vocabulary)

    def can_close(self, compiled: CompiledGrammar) -> bool:
        """Whether all is known that closing its outputs needs; else `look_ahead` finds it."""
        return not compiled.narrows or compiled in self._can_close

    async def look_ahead(self, compiled: CompiledGrammar) -> None:
        """Find what `can_close` asks for, which may take long."""
        if not self.can_close(compiled):
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._look_ahead, compiled)

    def closing(self, compiled: CompiledGrammar, grammar: Grammar, limit: int) -> Closing:
        """What ends an output of at most `limit` tokens; `grammar`, made of `compiled`, is at its
        beginning, and belongs to that."""
        assert self._finder is not None  # the store has loaded `compiled`
        return Closing(grammar, self._finder, limit, self._completions.get(compiled))

    @property
    def retokeniser(self) -> Retokeniser | None:
        """What makes tokens of the bytes that the store's grammars force; None: nothing does."""
        return None if self._shared is None else self._shared.retokeniser

    def close(self) -> None:
        """Load nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _keep(self, key: str, done: "asyncio.Future[CompiledGrammar]") -> None:
        del self._loading[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[key] = done.result()
        while len(self._kept) > STORE_GRAMMARS or (
            len(self._kept) > 1 and self.num_bytes > self._max_bytes
        ):
            self._kept.popitem(last=False)

    # ---- in the thread -------------------------------------------------------------------------

    def _prepared(self) -> TokenVocabulary:
        if self._shared is None:
            shared = self._make_shared()
            _ = shared.vocabulary.sorted_tokens  # not in the loop, which would wait for it
            self._finder = WitnessFinder(shared.vocabulary)
            self._shared = shared
        return self._shared.vocabulary

    def _look_ahead(self, compiled: CompiledGrammar) -> None:
        compiled.start().near(1)  # makes its tables
        self._can_close.add(compiled)

    def _read(self, key: str) -> CompiledGrammar:
        before = free_key_text(key)
        if before is not None:
            return free_grammar(before, self._prepared())
        path = self._directory / key
        try:
            artefact, vocabulary = read_artefact(path), self._prepared()
            with self._noted(key):
                compiled = self._loader(artefact, vocabulary)
                _ = compiled.fewest_tokens  # not in the loop
        except GrammarError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        if artefact.completion is not None:
            self._completions[compiled] = artefact.completion
        return compiled


def free_grammar(before: bytes, vocabulary: TokenVocabulary) -> CompiledGrammar:
    """`before`, and then whatever comes. It takes a millisecond and no compiler."""
    from scheduler_proc.grammar.fsm.grammar import FsmGrammar

    dfa = compile_free(before, absent_bytes=vocabulary.absent_bytes)
    return FsmGrammar.build(dfa, vocabulary, precompute_s=0.0)


def load_compiled(artefact: Artefact, vocabulary: TokenVocabulary) -> CompiledGrammar:
    """The compiled grammar of an artefact. Raises GrammarError if its back end does not take it."""
    from_arrays: Callable[[dict[str, Any], dict[str, np.ndarray], TokenVocabulary], CompiledGrammar]
    # A back end is loaded when it is first needed: each costs memory, and xgrammar needs torch.
    if artefact.backend == "fsm":
        from scheduler_proc.grammar.fsm.grammar import FsmGrammar

        from_arrays = FsmGrammar.from_arrays
    elif artefact.backend == "llguidance":
        from scheduler_proc.grammar.llg.backend import LlguidanceGrammar

        from_arrays = LlguidanceGrammar.from_arrays
    elif artefact.backend == "xgrammar":
        from scheduler_proc.grammar.xgrammar_backend import XgrammarGrammar

        from_arrays = XgrammarGrammar.from_arrays
    else:
        raise GrammarError(f"the compiled grammar is of an unknown back end {artefact.backend!r}")
    return from_arrays(artefact.facts, artefact.arrays, vocabulary)
