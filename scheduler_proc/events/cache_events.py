"""What a scheduler tells the router of its tree: all its blocks when it is asked, then changes."""

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.memory.block_hashes import Changes, all_hashes
from srt.wire.ring_messages import CacheEvents


class CacheNews:
    """Of one core. Nothing is told before somebody has asked."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self.reset()

    def reset(self) -> None:
        """A new incarnation: nobody has asked."""
        self._seq = -1
        self._is_asked = self._is_heard = False

    def ask(self) -> None:
        """Somebody wants to know of all blocks, and of their changes from then on."""
        self._is_asked = self._is_heard = True

    def tell(self, changes: Changes) -> CacheEvents | None:
        """What to tell, given what has changed since the last call."""
        incarnation = self._core.incarnation
        if self._is_asked:
            self._is_asked = False
            self._seq += 1
            hashes = [*all_hashes(self._core.cache.nodes())]
            return CacheEvents(incarnation, self._seq, hashes, is_snapshot=True)
        if not self._is_heard or not (changes.added or changes.removed):
            return None
        self._seq += 1
        added = [block.hash for block in changes.added]
        return CacheEvents(incarnation, self._seq, added, changes.removed)
