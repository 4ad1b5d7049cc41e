"""Tokens found by their beginnings, against a search through all."""

from hypothesis import given
from hypothesis import strategies as st

from srt.files.sorted_tokens import SortedTokens

_BYTES = st.binary(max_size=4) | st.lists(st.sampled_from([0, 97, 98, 255]), max_size=4).map(bytes)


@given(st.lists(_BYTES, max_size=20), st.sets(st.integers(0, 19)), _BYTES)
def test_as_if_each_token_were_looked_at(
    tokens: list[bytes], hidden: set[int], prefix: bytes
) -> None:
    ordered = SortedTokens(tokens, hidden)
    starting = {i for i, t in enumerate(tokens) if t and i not in hidden and t.startswith(prefix)}
    found = ordered.starting(prefix).tolist()
    assert len(found) == len(set(found)) and set(found) == starting
    longer = {i for i in starting if len(tokens[i]) > len(prefix)}
    assert set(ordered.longer(prefix).tolist()) == longer
    assert [tokens[i] for i in found] == sorted(tokens[i] for i in found)
