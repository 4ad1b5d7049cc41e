"""The running reqs' sampling parameters, in columns by table row: a step's arrays are gathered at
once. `ReqMemory` writes a row when its req enters memory; the plan reads.
"""

import numpy as np

from scheduler_proc.batch import SAMPLE_DTYPES, Samples
from scheduler_proc.core.requests.request import Req
from srt.wire.filled_params import FilledParams

_MASK = 2**64 - 1
_PARAMS = tuple(name for name in Samples._fields if name in FilledParams.__struct_fields__)


class SamplingTable:
    """Each column is [max_reqs]; its values in rows that no req has mean nothing."""

    def __init__(self, max_reqs: int) -> None:
        self._params = {name: np.zeros(max_reqs, SAMPLE_DTYPES[name]) for name in _PARAMS}
        self._want_logprob = np.zeros(max_reqs, bool)
        self._prompt_len = np.zeros(max_reqs, np.int64)
        self._seed_hash = np.zeros(max_reqs, np.uint64)

    def write(self, row: int, req: Req) -> None:
        """Write the columns of the row that the req gets."""
        wish = req.wish
        for name, column in self._params.items():
            column[row] = getattr(wish.sampling, name)
        self._want_logprob[row] = wish.scoring is not None
        self._prompt_len[row] = req.tokens.prompt_len
        self._seed_hash[row] = _splitmix64(np.array(wish.seed & _MASK, np.uint64, ndmin=1))[0]

    def samples(self, rows: np.ndarray, seq_lens: np.ndarray) -> Samples:
        """The parameters of these rows' samples [S], each the token after `seq_lens` others [S]."""
        outputs = (seq_lens - self._prompt_len[rows]).astype(np.uint64)
        return Samples(
            uniform=_uniform(self._seed_hash[rows], outputs),
            want_logprob=self._want_logprob[rows],
            **{name: column[rows] for name, column in self._params.items()},
        )


def _uniform(seed_hash: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The draws for the next samples, float64 [S] in [0, 1): hashes of (seed, output index).

    Independent of the batch, of retraction and of chunking, so a seed reproduces.
    Source: the splitmix64 generator (Steele, Lea, Flood, OOPSLA 2014).
    """
    draws: np.ndarray = (_splitmix64(seed_hash ^ outputs) >> np.uint64(11)) * 2.0**-53
    return draws


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """The hash of each x, uint64; arithmetic modulo 2^64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
