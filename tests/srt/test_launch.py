"""The address of the page, as the launcher writes it."""

import pytest

from srt.args import ServerArgs
from srt.launch import page_address


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
