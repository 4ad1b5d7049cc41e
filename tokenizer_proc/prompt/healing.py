"""Token healing: which of a prompt's last tokens the model should choose itself.

A prompt may end inside what is one token for the model: after `http:` it has hardly ever seen `//`,
because its training texts have `://` there. The last tokens are taken back, and the output must
begin with their text. Called by the front for requests that ask for it.
"""

from typing import NamedTuple

import numpy as np

from srt.files.sorted_tokens import SortedTokens
from srt.files.vocab import Vocab
from srt.wire.sampling import SamplingParams

MAX_HEALED_TOKENS = 4


class Healing(NamedTuple):
    """A prompt's last `num_tokens`, and their text."""

    num_tokens: int = 0
    text: str = ""


class PromptHealer:
    """Heals the prompts of one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        self._bytes = vocab.token_bytes
        self._fixed = vocab.special_ids.union(vocab.eos_ids)  # which have no text
        self._longer = SortedTokens(vocab.token_bytes, self._fixed).longer

    def heal(self, ids: np.ndarray, sampling: SamplingParams) -> Healing:
        """What to take back of the prompt `ids` (int32 [n]).

        The longest ending of at most four tokens that some longer token begins with; it has whole
        characters only, and leaves one token of the prompt. Nothing if there is none, if healing
        is not asked for, or if nothing is to be generated. No token of `stop_token_ids` is in it:
        writing it again would end the output.
        """
        found, ending = Healing(), b""
        if not sampling.token_healing or sampling.max_new_tokens == 0:
            return found
        stops = [data for i in sampling.stop_token_ids if (data := self._bytes[i])]
        for count in range(1, min(MAX_HEALED_TOKENS, len(ids) - 1) + 1):
            token = int(ids[-count])
            ending = self._bytes[token] + ending
            if token in self._fixed or not self._bytes[token] or any(s in ending for s in stops):
                break
            text = _text(ending)
            if text is not None and len(self._longer(ending)) > 0:
                found = Healing(count, text)
        return found


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
