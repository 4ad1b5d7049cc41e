"""What penalties and biases come to, kept up to date token by token and through jumps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.core.requests.tokens import Tokens
from scheduler_proc.sampling.penalties import LateChange, LogitChanges, with_entries
from srt.wire.filled_params import FilledParams
from tests.scheduler_proc.fake_executor import changes_of
from tests.scheduler_proc.ragged import adjust_of

TOKENS = st.integers(0, 9)
QUARTERS = st.integers(-8, 8).map(lambda n: n / 4)
SAMPLING = st.builds(
    FilledParams,
    frequency_penalty=QUARTERS,
    presence_penalty=QUARTERS,
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.25]),
    logit_bias=st.dictionaries(TOKENS, QUARTERS),
)
NEUTRAL = (1.0, 0.0)


def changes(columns: LogitChanges) -> dict[int, tuple[float, float]]:
    """The entries that change something, by token; each token has one entry."""
    assert len(columns.entries.ids) == len(columns)
    return changes_in(*columns.entries[:3])


def changes_in(
    all_ids: np.ndarray, repeat: np.ndarray, add: np.ndarray
) -> dict[int, tuple[float, float]]:
    ids = all_ids.tolist()
    assert len(set(ids)) == len(ids)
    pairs = zip(repeat.tolist(), add.tolist(), strict=True)
    return {t: pair for t, pair in zip(ids, pairs, strict=True) if pair != NEUTRAL}


@given(
    SAMPLING,
    st.lists(TOKENS, max_size=20),
    st.lists(st.tuples(st.integers(0, 4), st.lists(TOKENS, max_size=6)), max_size=12),
)
def test_tokens_and_jumps_leave_what_counting_anew_gives(
    sampling: FilledParams, prompt: list[int], edits: list[tuple[int, list[int]]]
) -> None:
    """Each edit takes back some outputs and puts others in their place."""
    tokens = Tokens(np.array(prompt, np.int32), sampling, vocab_size=10)
    output: list[int] = []
    for drop, new in edits:
        drop = min(drop, len(output))
        if drop == 0 and len(new) == 1:
            tokens.append(new[0])
        else:
            tokens.replace_tail(drop, new)
        output = output[: len(output) - drop] + new
        expected = changes_of(sampling, prompt, output)
        expected = {t: pair for t, pair in expected.items() if pair != NEUTRAL}
        found = tokens.logit_changes
        assert (found is None) == (not sampling.has_penalties and not sampling.logit_bias)
        assert ({} if found is None else changes(found)) == expected


@given(SAMPLING, st.lists(TOKENS), st.lists(TOKENS), TOKENS, TOKENS, st.integers(10, 12))
def test_a_token_that_comes_late_counts_as_if_it_had_been_known(
    sampling: FilledParams,
    prompt: list[int],
    output: list[int],
    late: int,
    counted_meanwhile: int,
    vocab_size: int,
) -> None:
    columns = LogitChanges(sampling, np.array(prompt, np.int32), vocab_size)
    for token in output:
        columns.count(token, 1)
    entries = columns.entries_with_room()
    assert max(entries.ids.tolist(), default=0) < vocab_size
    assert changes_in(*entries[:3]) == changes(columns)
    adjust = with_entries(adjust_of([{7: (1.0, 1.0), 8: (1.0, 1.0)}]), [entries])
    columns.count(counted_meanwhile, 1)  # by the loop, before the compute thread fills in
    LateChange(columns, 0, 2, entries.counts).fill_in(adjust, late)
    columns.count(counted_meanwhile, -1)
    columns.count(late, 1)
    assert changes_in(*(column[2:] for column in adjust[1:])) == changes(columns)
    assert [column[:2].tolist() for column in adjust[1:]] == [[7, 8], [1, 1], [1, 1]]


def test_many_tokens_have_room() -> None:
    columns = LogitChanges(
        FilledParams(presence_penalty=0.5), np.arange(1000, dtype=np.int32), 1000
    )
    for token in range(500):
        columns.count(token, 1)
    assert changes(columns) == dict.fromkeys(range(500), (1.0, -0.5))
