"""What penalties and biases come to, kept up to date token by token and through jumps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.penalties import LogitChanges
from scheduler_proc.req import Req
from srt.messages import TokenizedReq, pack_ids
from srt.sampling_params import SamplingParams
from tests.scheduler_proc.fake_executor import changes_of

TOKENS = st.integers(0, 9)
QUARTERS = st.integers(-8, 8).map(lambda n: n / 4)
SAMPLING = st.builds(
    SamplingParams,
    frequency_penalty=QUARTERS,
    presence_penalty=QUARTERS,
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.25]),
    logit_bias=st.dictionaries(TOKENS, QUARTERS),
)
NEUTRAL = (1.0, 0.0)


def changes(columns: LogitChanges) -> dict[int, tuple[float, float]]:
    """By token, those that change something; a token has one entry."""
    ids = columns.ids.tolist()
    assert len(set(ids)) == len(ids) == len(columns)
    pairs = zip(columns.repeat.tolist(), columns.add.tolist(), strict=True)
    return {t: pair for t, pair in zip(ids, pairs, strict=True) if pair != NEUTRAL}


@given(
    SAMPLING,
    st.lists(TOKENS, max_size=20),
    st.lists(st.tuples(st.integers(0, 4), st.lists(TOKENS, max_size=6)), max_size=12),
)
def test_tokens_and_jumps_leave_what_counting_anew_gives(
    sampling: SamplingParams, prompt: list[int], edits: list[tuple[int, list[int]]]
) -> None:
    """Each edit takes back some outputs and puts others in their place."""
    wire = TokenizedReq(b"c", "r", 0, pack_ids(prompt), sampling)
    req = Req(0, wire, seed=0, now=0.0, vocab_size=10)
    output: list[int] = []
    for drop, tokens in edits:
        drop = min(drop, len(output))
        if drop == 0 and len(tokens) == 1:
            req.append(tokens[0])
        else:
            req.replace_tail(drop, tokens)
        output = output[: len(output) - drop] + tokens
        expected = changes_of(sampling, prompt, output)
        expected = {t: pair for t, pair in expected.items() if pair != NEUTRAL}
        assert (req.logit_changes is None) == (
            not sampling.has_penalties and not sampling.logit_bias
        )
        assert ({} if req.logit_changes is None else changes(req.logit_changes)) == expected


def test_many_tokens_have_room() -> None:
    columns = LogitChanges(SamplingParams(presence_penalty=0.5), np.arange(1000, dtype=np.int32))
    for token in range(500):
        columns.count(token, 1)
    assert changes(columns) == dict.fromkeys(range(500), (1.0, -0.5))
