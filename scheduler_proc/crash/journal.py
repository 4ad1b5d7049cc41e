"""Notes which requests run, in a file (`srt.ring.crash_file`): if this process is lost, the front
finds there who may have ended it. The requests that it then calls suspects are tried alone
(`Trials`), and those that it finds guilty are ended.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.steps.step import Step
from srt.ring.crash_file import (
    BlameFile,
    LastWords,
    Name,
    Notes,
    Record,
    blame_path,
    last_words_path,
    packed,
)
from srt.wire.errors import UNAVAILABLE, ErrorInfo
from srt.wire.ring_messages import TokenizedReq

GUILTY = ErrorInfo(
    UNAVAILABLE,
    "the scheduler was lost when it, or one of its threads, was at nothing but this request",
    retryable=True,
)


class Blame:
    """Of the requests that `core` runs. `is_wary`: there have been losses, so notes are taken from
    the start; otherwise from the first suspect on."""

    def __init__(
        self, directory: Path, incarnation: int, core: Scheduler, *, is_wary: bool
    ) -> None:
        self._directory, self._core, self._trials = directory, core, core.state.trials
        self._last_words = LastWords(last_words_path(directory, incarnation))
        self._path = blame_path(directory, incarnation)
        self._file = BlameFile(self._path)
        self.notes: Notes | None = self._file.notes if is_wary else None  # that are to be taken
        self.has_ended_guilty = False
        self._trial: Step | None = None
        self._loop = threading.get_ident()
        self._lock = threading.Lock()  # a step may begin while the one before is noted as ended
        self._noted: tuple[list[int], frozenset[Name], Name | None] | None = None
        self._write([])

    def listen(self) -> None:
        """If this process crashes, leave its stacks."""
        self._last_words.listen()

    def takes(self, req: TokenizedReq) -> bool:
        """Whether the request is guilty, and is to be ended. If it is a suspect, tell the core."""
        reported = req.reported
        if reported is None:
            return False
        if reported.is_suspect:
            self.notes = self._file.notes
            self._core.suspect([(req.client, req.rid)])
        self.has_ended_guilty |= reported.is_guilty
        return reported.is_guilty

    def accuse(self, names: list[Name]) -> None:
        """Leave these as suspects, as if the last step had been theirs."""
        self._trial = None
        self._write(names)

    def own_up(self, why: str, thread: int | None = None) -> None:
        """This process ends by its own doing, or that of one of its threads."""
        self._last_words.write(why, thread)

    def note_grammar(self, key: str) -> AbstractContextManager[None]:
        """Lasts as long as this thread loads a grammar."""
        return nullcontext() if self.notes is None else self.notes.of(packed(key))

    def move(self, incarnation: int) -> None:
        """A new epoch: this process has another incarnation."""
        path = blame_path(self._directory, incarnation)
        self._path = self._path.rename(path)
        self._last_words.move(last_words_path(self._directory, incarnation))

    def end(self, step: Step) -> None:
        """The step is committed. If it was a trial's last, nobody is to blame for what comes now;
        if another follows, its planning may crash."""
        with self._lock:
            if step is self._trial:
                self._trial, name = None, step.rows[0].req.key
                is_over = name not in self._trials.suspects
                self._write([] if is_over else [name], is_between=not is_over)

    # ---- in the compute thread -----------------------------------------------------------------

    def on_trial(self, *steps: Step) -> bool:
        """Whether one of the steps is a suspect's, which are to have the process to themselves."""
        suspects = self._trials.suspects
        return bool(suspects) and any(_is_trial(step, suspects) for step in steps)

    def begin(self, step: Step, running: Step | None = None) -> None:
        """A step begins, or is queued on a device after the one that is `running` there. Writes
        nothing while the same requests run."""
        reqs = {row.req.handle: row.req for s in (running, step) if s is not None for row in s.rows}
        handles, suspects, at = list(reqs), self._trials.suspects, self._trials.at
        with self._lock:
            if self._noted != (handles, suspects, at):
                names = [req.key for req in reqs.values()]
                is_alone = running is None and _is_trial(step, suspects)
                self._trial = step if is_alone else None
                self._write(names, on_trial=None if self._trial is step else at)
                self._noted = (handles, suspects, at)

    def is_trial_of(self, names: list[Name]) -> bool:
        """Whether only a suspect needs what is to be encoded."""
        return len(names) == 1 and names[0] in self._trials.suspects

    @contextmanager
    def encoding(self, names: list[Name], running: Step | None = None) -> Iterator[None]:
        """Meanwhile something that these requests show is encoded, while a step may be `running` on
        a device. It is a part of the trial of a suspect that alone needs it."""
        beside = [row.req.key for row in running.rows] if running is not None else []
        is_trial = running is None and self.is_trial_of(names)
        with self._lock:
            self._trial = None
            at = None if is_trial else self._trials.at
            self._write([*names, *beside], is_trial=is_trial, on_trial=at)
        try:
            yield
        finally:
            with self._lock:
                if is_trial:
                    self._write(names, is_between=True)

    def _write(
        self,
        running: list[Name],
        *,
        is_trial: bool = False,
        is_between: bool = False,
        on_trial: Name | None = None,
    ) -> None:
        is_trial = is_trial or self._trial is not None or is_between
        cleared, loop = self._trials.cleared, 0 if on_trial is None else self._loop
        self._file.write(Record(running, is_trial, is_between, cleared, on_trial, loop))
        self._noted = None


def _is_trial(step: Step, suspects: frozenset[Name]) -> bool:
    return len(step.rows) == 1 and step.rows[0].req.key in suspects
