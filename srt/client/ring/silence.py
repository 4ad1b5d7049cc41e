"""How long a client has heard nothing: of a ring's launcher, and of its parts.

The launcher tells the ring's state once a second, and the detokenizer answers each Hello, which is
sent as often. A launcher that stands still ends nothing: what the parts run goes on. A ring is gone
when the detokenizer is not heard either: it sends all outputs. What the tokenizer answers is no
sign of life, since it admits requests that then would wait for ever.
"""

from srt.ring.places import LEASE_INTERVAL_S, QUIET_S, RING_LOST_S


class Silence:
    """What one identity of a client hears, in seconds in which its loop could hear (see `within`).

    Its owner waits `patience_s` for the launcher, and tells whether that spoke.
    """

    def __init__(self) -> None:
        self.is_of_launcher = False
        # Parts that do not run, as the kernel says while the launcher is silent.
        self.halted: list[str] = []
        self._of_parts_s = 0.0
        self._parts_spoke = False  # since the owner began to wait

    @property
    def patience_s(self) -> float:
        """How long to wait for the launcher now."""
        return LEASE_INTERVAL_S if self.is_of_launcher else QUIET_S

    @property
    def is_of_all(self) -> bool:
        """Whether the ring is gone."""
        return self.is_of_launcher and self._of_parts_s >= RING_LOST_S

    @property
    def is_of_parts(self) -> bool:
        """Whether no part has spoken while the owner last waited in vain for the launcher."""
        return self._of_parts_s > 0

    def part_spoke(self) -> None:
        """The detokenizer has sent something."""
        self._parts_spoke = True

    def launcher_spoke(self) -> None:
        """An event has come."""
        self.halted = []
        self.is_of_launcher, self._of_parts_s, self._parts_spoke = False, 0.0, False

    def launcher_was_silent(self) -> None:
        """No event has come within `patience_s`."""
        self._of_parts_s = 0.0 if self._parts_spoke else self._of_parts_s + self.patience_s
        self.is_of_launcher, self._parts_spoke = True, False
