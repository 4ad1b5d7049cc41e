"""What is done here with an answer's text: a strict schema's form is taken back, stops that the
provider does not know end it, and blanks that it repeats are left out.
"""

import msgspec
from msgspec import Struct

from lang.backends.base import Completion
from lang.backends.schemas.strict import Strict


class Reading(Struct, frozen=True):
    """How the text of a provider's answer becomes a gen's: by `strict`, then up to the first of
    `stops`. An answer may begin with `skipped`, which the prompt has already."""

    strict: Strict | None = None
    stops: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def streams(self) -> bool:
        """Whether an answer can be read before it is whole."""
        return self.strict is None or self.strict.is_plain

    def partial(self, text: str) -> str:
        """What of an answer so far will stay, however it goes on."""
        if not self.streams or self.skipped.startswith(text):
            return ""
        text = self._continued(text)
        end, found = self._first_stop(text)
        if found is not None:
            return text[:end]
        held = max((_overlap(text, stop) for stop in self.stops), default=0)
        return text[: len(text) - held]

    def is_over(self, text: str) -> bool:
        """Whether a stop has come, so that the rest need not be read."""
        return self.streams and self._first_stop(self._continued(text))[1] is not None

    def whole(self, answer: Completion) -> Completion:
        """The gen's completion of a whole answer."""
        text = self._continued(answer.text)
        if self.strict is not None:
            text = self.strict.text_of(text)
        end, found = self._first_stop(text)
        if found is not None:
            return msgspec.structs.replace(answer, text=text[:end], finish="stop", matched=found)
        return msgspec.structs.replace(answer, text=text) if text != answer.text else answer

    def _continued(self, text: str) -> str:
        return text.removeprefix(self.skipped) if self.skipped else text

    def _first_stop(self, text: str) -> tuple[int, str | None]:
        places = [(text.find(stop), stop) for stop in self.stops if stop in text]
        return min(places) if places else (len(text), None)


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the beginning of `stop`."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
