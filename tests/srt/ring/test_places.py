"""What lies in a ring's directory, and who may read it."""

from pathlib import Path

from srt.args import ServerArgs
from srt.ring.places import create_ring


def test_keys_are_for_the_servers_user_only(tmp_path: Path) -> None:
    ring = create_ring(str(tmp_path / "ring"))
    ring.write_args(ServerArgs(api_key="sesame"))
    assert ring.directory.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in ring.directory.iterdir()}
    assert modes == {"args.json": 0o600, "page_key": 0o600}
    assert ring.read_args().api_key == "sesame"


def test_each_ring_has_a_page_key_of_its_own(tmp_path: Path) -> None:
    keys = set()
    for name in "ab":
        ring = create_ring(str(tmp_path / name))
        ring.write_args(ServerArgs())
        keys.add(ring.read_page_key())
    assert len(keys) == 2 and all(len(key) >= 20 for key in keys)
