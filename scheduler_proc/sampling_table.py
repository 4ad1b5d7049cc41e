"""How the running reqs sample, as columns by table row, so that a step's arrays are gathered from
them at once. `ReqMemory` writes a row when its req enters memory; the plan reads.
"""

from typing import Any

import numpy as np

from scheduler_proc.req import Req

_MASK = 2**64 - 1


class SamplingTable:
    """Each column is [max_reqs]; what it holds of rows that no req has is of no meaning."""

    def __init__(self, max_reqs: int) -> None:
        self._temperature = np.zeros(max_reqs, np.float32)
        self._top_p = np.zeros(max_reqs, np.float32)
        self._top_k = np.zeros(max_reqs, np.int32)
        self._min_p = np.zeros(max_reqs, np.float32)
        self._want_logprob = np.zeros(max_reqs, bool)
        self._prompt_len = np.zeros(max_reqs, np.int64)
        self._seed_hash = np.zeros(max_reqs, np.uint64)

    def write(self, row: int, req: Req) -> None:
        """The columns of the row, which the req gets."""
        wish, params = req.wish, req.wish.sampling
        self._temperature[row] = params.temperature
        self._top_p[row] = params.top_p
        self._top_k[row] = params.top_k
        self._min_p[row] = params.min_p
        self._want_logprob[row] = wish.scoring is not None
        self._prompt_len[row] = req.tokens.prompt_len
        self._seed_hash[row] = _splitmix64(np.array(wish.seed & _MASK, np.uint64, ndmin=1))[0]

    def arrays(self, rows: np.ndarray, seq_lens: np.ndarray) -> dict[str, Any]:
        """The arrays of a ForwardBatch for samples of these rows [S], each of the token that comes
        after so many [S]."""
        outputs = (seq_lens - self._prompt_len[rows]).astype(np.uint64)
        return {
            "temperature": self._temperature[rows],
            "top_p": self._top_p[rows],
            "top_k": self._top_k[rows],
            "min_p": self._min_p[rows],
            "want_logprob": self._want_logprob[rows],
            "uniform": _uniform(self._seed_hash[rows], outputs),
        }


def _uniform(seed_hash: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The draws for the next samples, float64 [S] in [0, 1): hashes of (seed, output index).

    Independent of the batch, of retraction and of chunking, so a seed reproduces.
    Source: the splitmix64 generator (Steele, Lea, Flood, OOPSLA 2014).
    """
    draws: np.ndarray = (_splitmix64(seed_hash ^ outputs) >> np.uint64(11)) * 2.0**-53
    return draws


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """Of each x, uint64; arithmetic modulo 2^64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
