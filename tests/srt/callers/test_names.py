"""Names of callers."""

import pytest

from srt.callers.names import MAX_NAME_CHARS, caller_of, name_of_address


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("127.0.0.1", "ip:127.0.0.1"),
        ("::ffff:10.0.0.1", "ip:10.0.0.1"),
        ("2001:db8:1:2:3::4", "ip:2001:db8:1:2::/64"),
        ("2001:db8:1:2::5", "ip:2001:db8:1:2::/64"),
        ("::1", "ip:::1"),
        ("", "ip:"),
    ],
)
def test_an_address_is_a_caller(address: str, name: str) -> None:
    assert name_of_address(address) == name


def test_a_client_of_the_ring_is_a_caller_unless_it_names_another() -> None:
    assert caller_of(b"\x00\xff", "") == "ring:00ff"
    assert caller_of(b"\x00\xff", "alice") == caller_of(b"other", "alice") == "alice"


def test_names_are_bounded() -> None:
    long = ["t" * 256, "t" * 255]
    names = [caller_of(b"c", tenant) for tenant in long] + [caller_of(b"c" * 200, "")]
    assert len(set(names)) == 3 and max(map(len, names)) == MAX_NAME_CHARS
