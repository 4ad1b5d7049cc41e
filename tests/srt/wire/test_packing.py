"""Ids and numbers as bytes, held against numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.wire.packing import (
    float_list,
    id_list,
    num_packed,
    pack_floats,
    pack_ids,
    packed_size,
    packed_slice,
    unpack_floats,
    unpack_ids,
)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids(ids: list[int]) -> None:
    packed = np.array(ids, "<i4").tobytes()
    assert packed == pack_ids(ids) == pack_ids(np.array(ids, np.int64))
    assert id_list(packed) == unpack_ids(packed).tolist() == ids
    assert num_packed(packed) == len(ids) and packed_size(len(ids)) == len(packed)
    assert packed[packed_slice(1, 3)] == pack_ids(ids[1:3])


@given(st.lists(st.floats(width=32)))
def test_floats(values: list[float]) -> None:
    array = np.array(values, "<f4")
    packed = array.tobytes()
    for given_as in (values, array, array.astype(np.float64)):
        np.testing.assert_array_equal(unpack_floats(pack_floats(given_as)), array)
    np.testing.assert_array_equal(float_list(packed), array)


def test_rows_are_packed_one_after_the_other() -> None:
    assert pack_ids(np.array([[1, 2], [3, 4]])) == pack_ids([1, 2, 3, 4])


@pytest.mark.parametrize("ids", [[2**31], [-(2**31) - 1], [1.5], ["1"], [None], [[1]]])
def test_what_is_no_id_is_refused(ids: list) -> None:
    with pytest.raises(ValueError):
        pack_ids(ids)
