"""What the compile worker's children do: make the artefact of a constraint, or find it cached.

Called in children only, but for `job` and `rehearse`.
"""

import logging
from contextlib import suppress

import msgspec

from scheduler_proc.grammar.artefact import Artefact, write_artefact
from scheduler_proc.grammar.base import BackEndError, CompiledGrammar, GrammarError
from scheduler_proc.grammar.cache import ArtefactFolder
from scheduler_proc.grammar.closing.texts import texts_of
from scheduler_proc.grammar.closing.witness import WitnessFinder
from scheduler_proc.grammar.compiler import GrammarCompiler
from scheduler_proc.grammar.library_errors import about_lark, in_our_words
from scheduler_proc.grammar.ll_grammar import LLGrammar
from scheduler_proc.grammar.llg.backend import LlguidanceGrammar
from scheduler_proc.grammar.llg.blame import blamed, check_strings
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.grammar.worker.job import Outcome
from scheduler_proc.grammar.worker.trial import check_affordable
from srt.wire.constraint import Constraint

log = logging.getLogger(__name__)

_Job = tuple[str, Constraint]


class ArtefactMaker:
    """A `Work` whose jobs are a key and a constraint."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        vocabulary: TokenVocabulary,
        folder: ArtefactFolder,
        cache: ArtefactFolder | None,
    ) -> None:
        """Artefacts go into `folder`, and from there into `cache`."""
        self._compiler, self._vocabulary = compiler, vocabulary
        self._folder, self._cache = folder, cache
        self._finder = WitnessFinder(vocabulary)  # made once, before children are forked

    def job(self, key: str, constraint: Constraint) -> bytes:
        return msgspec.msgpack.encode((key, constraint))

    def rehearse(self) -> None:
        """Do what every job does, on constraints of our own."""
        for compiled in self._compiler.warm_up():
            with suppress(GrammarError):  # only the rehearsal matters
                check_affordable(compiled, self._vocabulary)

    def do(self, job: bytes) -> Outcome:
        """Put the artefact into the folder. Raises GrammarError."""
        key, constraint = msgspec.msgpack.decode(job, type=_Job)
        with suppress(OSError):  # compiling it needs less, or says why not
            if self._cache is not None and self._folder.copy_from(self._cache, key):
                return Outcome("cached")
        compiled = self._compiled(constraint)
        completion = self._completion(compiled, constraint)
        facts, arrays = compiled.to_arrays()
        artefact = Artefact(compiled.backend, facts, arrays, completion)
        temporary = self._folder.temporary()
        try:
            size = write_artefact(temporary, artefact)
            self._folder.add(key, temporary)
        finally:
            temporary.unlink(missing_ok=True)
        return Outcome("ok", f"{compiled.backend}, {size} bytes")

    def _compiled(self, constraint: Constraint) -> CompiledGrammar:
        """Compiled, and found to be affordable. Raises GrammarError that names the part of the
        constraint that is not."""
        try:
            compiled = self._compiler.compile(constraint)
            check_affordable(compiled, self._vocabulary)
            if compiled.backend == "llguidance":
                check_strings(constraint, self._try_out)
        except BackEndError as error:
            raise blamed(constraint, error, self._try_out) from None
        return compiled

    def _try_out(self, grammar: LLGrammar, is_lark: bool) -> None:
        refusal = about_lark if is_lark else in_our_words
        compiled = LlguidanceGrammar(grammar.text(), self._vocabulary, refusal)
        check_affordable(compiled, self._vocabulary)

    def _completion(self, compiled: CompiledGrammar, constraint: Constraint) -> list[int] | None:
        """A short output, for closing others; None if none is found, or the grammar narrows."""
        if compiled.narrows:
            return None
        try:
            start, after = compiled.start(), constraint.after.encode()
            lead = b"" if constraint.opener else after
            found = self._finder.find_ahead(start, lead)
            if found is None and (texts := texts_of(constraint)):
                found = self._finder.find_ahead(start, lead, texts=texts)
            if found is not None and constraint.opener:
                # With free text that is empty: any output takes as much of the end as is left.
                empty = self._finder.spelled(constraint.opener.encode() + after)
                found = [*(empty or ()), *found]
            return found
        except BaseException:  # a panic of a library, too: closing does without it
            log.exception("no completion is looked for")
            return None

    def finish(self, job: bytes) -> None:
        """Put the artefact into the cache."""
        key, _ = msgspec.msgpack.decode(job, type=_Job)
        if self._cache is None:
            return
        try:
            self._cache.copy_from(self._folder, key)
            self._cache.trim()
        except OSError as error:
            why = error.strerror or error
            raise OSError(f"compiled grammars are not kept in {self._cache}: {why}") from None
