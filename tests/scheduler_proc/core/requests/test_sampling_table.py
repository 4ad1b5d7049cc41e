"""How the running reqs sample, gathered by table row."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler_proc.batch import SAMPLE_DTYPES
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.requests.sampling_table import SamplingTable
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq

MASK = 2**64 - 1


def splitmix64(x: int) -> int:
    """The published generator, on Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def req(seed: int, prompt_len: int, sampling: FilledParams) -> Req:
    sampling = replace(sampling, seed=seed)
    wire = TokenizedReq(b"c", "r", 0, pack_ids([1] * prompt_len), sampling)
    return Req.of(0, wire, 0.0, 1000)


@given(
    reqs=st.lists(
        st.tuples(
            st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**64 - 1)),
            st.integers(1, 9),
            st.integers(0, 300),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_each_draw_is_a_hash_of_the_seed_and_of_how_many_outputs_there_are(
    reqs: list[tuple[int, int, int]],
) -> None:
    table = SamplingTable(len(reqs))
    for row, (seed, prompt_len, _) in enumerate(reqs):
        table.write(row, req(seed, prompt_len, FilledParams(max_new_tokens=1)))
    seq_lens = np.array([prompt_len + outputs for _, prompt_len, outputs in reqs], np.int32)
    uniform = table.samples(np.arange(len(reqs)), seq_lens).uniform
    expected = [splitmix64(splitmix64(seed) ^ n) >> 11 for seed, _, n in reqs]
    assert uniform.tolist() == [draw * 2.0**-53 for draw in expected]


def test_rows_are_gathered_in_any_order_and_may_change_hands() -> None:
    table = SamplingTable(3)
    filters: dict[str, Any] = {"top_p": 0.25, "top_k": 7, "min_p": 0.125, "top_n_sigma": 1.5}
    first = FilledParams(max_new_tokens=1, temperature=0.5, **filters)
    table.write(2, req(0, 1, FilledParams(max_new_tokens=1, temperature=2.0)))
    table.write(0, req(0, 1, FilledParams(max_new_tokens=1, temperature=1.5)))
    table.write(2, req(0, 1, first))
    samples = table.samples(np.array([2, 0]), np.array([1, 1], np.int32))
    assert samples.temperature.tolist() == [0.5, 1.5]
    assert {name: getattr(samples, name)[0] for name in filters} == filters
    assert samples.want_logprob.tolist() == [False, False]
    assert {n: column.dtype for n, column in samples._asdict().items()} == SAMPLE_DTYPES
