"""What the launcher says of where the server is reached, and by whom."""

import pytest

from srt.args import ServerArgs
from srt.launch import is_open_to_others, page_address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:80", "http://127.0.0.1:80"),
        ("http://0.0.0.0:80", "http://127.0.0.1:80"),
        ("http://[::]:80", "http://[::1]:80"),
        ("http://10.0.0.1:80", "http://10.0.0.1:80"),
    ],
)
def test_it_can_be_opened_where_the_server_listens(url: str, shown: str) -> None:
    assert page_address(ServerArgs(), url, "k") == f"{shown}/#key=k"


def test_the_key_is_in_it_only_where_nobody_has_an_admins() -> None:
    url = "http://127.0.0.1:80"
    assert page_address(ServerArgs(api_key="a,b"), url, "k") == f"{url}/#key=k"
    for args in (ServerArgs(api_key="only"), ServerArgs(admin_api_key="root")):
        assert page_address(args, url, "k") == f"{url}/"


@pytest.mark.parametrize(
    ("url", "is_open"),
    [
        *(("http://127.0.0.1:80", False), ("http://[::1]:80", False)),
        *(("http://0.0.0.0:80", True), ("http://[::]:80", True), ("http://10.0.0.1:80", True)),
    ],
)
def test_a_server_without_keys_that_others_reach_is_told(url: str, is_open: bool) -> None:
    assert is_open_to_others(ServerArgs(), url) is is_open
    for args in (ServerArgs(api_key="a,b"), ServerArgs(admin_api_key="root")):
        assert not is_open_to_others(args, url)
