"""What a tokenizer leaves of a pause for the next one: a file in the ring's directory, with the
mode. All else that concerns a pause is the dispatch's."""

import logging
from pathlib import Path

from srt.wire.pause import NO_PAUSE, PAUSE_MODES, Pause

log = logging.getLogger(__name__)

_NAME = "paused"


def note_pause(directory: Path, pause: Pause) -> None:
    """Note that this holds. If it cannot be noted it holds until this process ends."""
    path = directory / _NAME
    try:
        if pause.mode is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(pause.mode)
    except OSError as error:
        log.warning("a pause ends if the tokenizer dies: it cannot be noted in %s: %s", path, error)


def noted_pause(directory: Path, now: float) -> Pause:
    """The pause that was noted, as one that begins at `now` of time.monotonic(): all requests from
    before have failed."""
    try:
        text = (directory / _NAME).read_text()
    except OSError:
        return NO_PAUSE
    found = [mode for mode in PAUSE_MODES if mode == text]
    return NO_PAUSE.begun(found[0] if found else "in_place", now)
