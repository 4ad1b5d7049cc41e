"""Bringing models from a hub that fails as hubs do, by the unmodified huggingface_hub."""

import fcntl
import json
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from srt.hub import model_here, transfer
from srt.hub.cache import snapshots
from srt.hub.names import HubName
from srt.hub.repository import fetch
from srt.progress import Progress
from srt.wire.errors import ConfigError
from tests.hub_server import Hub, Repo, etag_of, running_hub

# More than is brought in one go, and more than a file of the hub that is kept by its id.
LARGE = bytes(range(256)) * 2**16
LINKED = b"GGUF" + LARGE  # of a server that is no hub
SMALL = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "modeling.py": b"import os"}
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode()
TOKEN = "hf_secretsecret"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repos = {
        "org/plain": Repo(SMALL | {"model.safetensors": LARGE}),
        "org/sharded": Repo(
            SMALL
            | {"model.safetensors.index.json": INDEX, SHARDS[0]: LARGE, SHARDS[1]: LARGE[::-1]},
        ),
        "org/gguf": Repo({"a-Q4_0.gguf": LARGE, "a-Q8_0.gguf": LARGE + b"8"}),
        "org/split": Repo({f"a-Q8_0-0000{i}-of-00002.gguf": LARGE + b"%d" % i for i in (1, 2)}),
        "org/private": Repo(SMALL | {"model.safetensors": LARGE}, needs=TOKEN),
        "org/gated": Repo(SMALL | {"model.safetensors": LARGE}, needs=TOKEN, is_gated=True),
        "org/pinned": Repo(SMALL | {"model.safetensors": b"x"}, "b" * 40, ("main", "v1")),
    }
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with running_hub(Hub(repos)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        yield hub


def blobs(tmp_path: Path, repo: str) -> list[str]:
    folder = tmp_path / "hub" / f"models--{repo.replace('/', '--')}" / "blobs"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_the_library_takes_our_hub_for_one(hub: Hub, tmp_path: Path) -> None:
    """What the tests below rest on."""
    folder = Path(huggingface_hub.snapshot_download("org/sharded"))
    for path, content in hub.repos["org/sharded"].files.items():
        assert (folder / path).read_bytes() == content
    info = huggingface_hub.HfApi().model_info("org/plain", files_metadata=True)
    assert {each.rfilename: each.size for each in info.siblings or ()}["config.json"] == 8


def test_a_directory(hub: Hub, tmp_path: Path) -> None:
    folder = fetch(HubName("org/plain"))
    assert sorted(path.name for path in folder.iterdir()) == [
        *("config.json", "model.safetensors", "tokenizer.json"),
    ]
    assert (folder / "model.safetensors").read_bytes() == LARGE
    # The library finds it, without asking for a file again.
    hub.asked.clear()
    found = huggingface_hub.hf_hub_download("org/plain", "model.safetensors")
    assert Path(found) == folder / "model.safetensors"
    assert not [each for each in hub.asked if each.startswith("GET")]


def test_the_second_time_only_the_list_is_asked_for(hub: Hub) -> None:
    first = fetch(HubName("org/plain"))
    hub.asked.clear()
    assert fetch(HubName("org/plain")) == first
    assert hub.asked == ["GET /api/models/org/plain"]


def test_what_the_library_has_brought_is_taken(hub: Hub) -> None:
    folder = Path(huggingface_hub.snapshot_download("org/sharded"))
    hub.asked.clear()
    assert fetch(HubName("org/sharded")) == folder
    assert hub.asked == ["GET /api/models/org/sharded"]


@pytest.mark.full
def test_shards_and_a_split_file(hub: Hub) -> None:
    folder = fetch(HubName("org/sharded"))
    assert (folder / SHARDS[1]).read_bytes() == LARGE[::-1]
    first = fetch(HubName("org/split"))
    assert first.name == "a-Q8_0-00001-of-00002.gguf"
    assert first.with_name("a-Q8_0-00002-of-00002.gguf").read_bytes() == LARGE + b"2"


def test_a_quantisation(hub: Hub, tmp_path: Path) -> None:
    path = fetch(HubName("org/gguf", variant="Q8_0"))
    assert path.name == "a-Q8_0.gguf" and path.read_bytes() == LARGE + b"8"
    assert blobs(tmp_path, "org/gguf") == [etag_of(LARGE + b"8")]
    with pytest.raises(ConfigError, match="name one"):
        fetch(HubName("org/gguf"))


def test_revisions(hub: Hub) -> None:
    paths = {fetch(HubName("org/pinned", revision)) for revision in ("", "v1", "b" * 40)}
    assert [path.name for path in paths] == ["b" * 40]
    with pytest.raises(ConfigError, match="has no revision 'v2'"):
        fetch(HubName("org/pinned", "v2"))


def test_large_files_may_lie_elsewhere_and_the_token_stays(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with running_hub(Hub({"": hub.repos["org/private"]})) as other:
        hub.other = other.url
        folder = fetch(HubName("org/private"))
        assert (folder / "model.safetensors").read_bytes() == LARGE
        assert hub.tokens == {TOKEN}
        assert other.tokens == {""}


def test_a_connection_that_breaks_is_taken_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.cut_after, hub.cuts = 12_000_000, 1
    folder = fetch(HubName("org/plain"))
    assert (folder / "model.safetensors").read_bytes() == LARGE
    assert hub.ranges == ["bytes=10485760-"]  # the library writes 10 MiB at once


def test_a_download_goes_on_where_an_earlier_one_ended(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.cut_after, hub.cuts = 0, 100  # nothing arrives any more
    etag = etag_of(LARGE)
    folder = tmp_path / "hub" / "models--org--plain" / "blobs"
    folder.mkdir(parents=True)
    partial = folder / f"{etag}.srt-incomplete"
    partial.write_bytes(LARGE[:5_000_000])
    with pytest.raises(ConfigError, match="org/plain"):
        fetch(HubName("org/plain"))
    assert partial.stat().st_size == 5_000_000
    hub.cuts = 0
    hub.ranges.clear()
    path = fetch(HubName("org/plain")) / "model.safetensors"
    assert path.read_bytes() == LARGE
    assert hub.ranges == ["bytes=5000000-"]
    assert etag in blobs(tmp_path, "org/plain") and not partial.exists()


@pytest.mark.parametrize("there", [b"not what it begins with", LARGE + b"more"])
def test_what_lay_there_was_of_something_else(hub: Hub, tmp_path: Path, there: bytes) -> None:
    folder = tmp_path / "hub" / "models--org--plain" / "blobs"
    folder.mkdir(parents=True)
    (folder / f"{etag_of(LARGE)}.srt-incomplete").write_bytes(there)
    if len(there) < len(LARGE):
        with pytest.raises(ConfigError, match="SHA-256 differs"):
            fetch(HubName("org/plain"))
    assert (fetch(HubName("org/plain")) / "model.safetensors").read_bytes() == LARGE


def test_a_wrong_hash_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.damages = True
    with pytest.raises(ConfigError, match="SHA-256 differs"):
        fetch(HubName("org/plain"))
    assert etag_of(LARGE) not in " ".join(blobs(tmp_path, "org/plain"))
    hub.damages = False
    assert (fetch(HubName("org/plain")) / "model.safetensors").read_bytes() == LARGE


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_hub_is_asked_again(hub: Hub, status: int) -> None:
    hub.busy = [status, status]
    assert (fetch(HubName("org/plain")) / "config.json").exists()


def test_a_hub_that_stays_busy(hub: Hub) -> None:
    hub.busy = [429] * 20
    with pytest.raises(ConfigError, match="answered 429: too many requests"):
        fetch(HubName("org/plain"))


def test_a_hub_that_is_busy_for_long_is_not_waited_for(hub: Hub) -> None:
    hub.busy, hub.retry_after = [429] * 20, "3600"
    with pytest.raises(ConfigError, match="too many requests"):
        fetch(HubName("org/plain"))
    assert len(hub.asked) == 1


def test_a_hub_that_is_busy_but_the_model_is_here(hub: Hub) -> None:
    folder = fetch(HubName("org/plain"))
    hub.busy = [503] * 20
    assert fetch(HubName("org/plain")) == folder


@pytest.mark.parametrize(
    ("repo", "token", "message"),
    [
        ("org/gated", "", "is gated, and there is no token: accept its terms"),
        ("org/gated", "hf_other", "is gated, this token has no access"),
        ("org/private", "", "the hub has no model 'org/private', or is private: set HF_TOKEN"),
        ("org/private", "hf_other", "or this token may not see it"),
        ("org/nothing", "", "the hub has no model 'org/nothing'"),
        ("org/nothing", "hf_other", "is it spelled right"),
    ],
)
def test_who_may_not(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, repo: str, token: str, message: str
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ConfigError, match=message) as error:
        fetch(HubName(repo))
    assert not token or token not in str(error.value)


def test_who_may(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for repo in ("org/gated", "org/private"):
        assert (fetch(HubName(repo)) / "model.safetensors").read_bytes() == LARGE


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(HubName("org/plain"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert fetch(HubName("org/plain")) == folder
    assert fetch(HubName("org/plain", "a" * 40)) == folder
    with pytest.raises(ConfigError, match=r"org/sharded is not in .*HF_HUB_OFFLINE is set"):
        fetch(HubName("org/sharded"))
    assert hub.asked == []


def test_offline_with_a_part_of_the_model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(HubName("org/sharded"))
    (folder / SHARDS[1]).unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"00002-of-00002.* \(of what the cache has"):
        fetch(HubName("org/sharded"))


def test_nobody_is_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(HubName("org/plain"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fetch(HubName("org/plain")) == folder
    with pytest.raises(ConfigError, match="cannot be reached"):
        fetch(HubName("org/sharded"))


def test_no_space(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=2**25)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(ConfigError, match=r"16\.0 MiB are to be brought .* has 32\.0 MiB free"):
        fetch(HubName("org/plain"))
    assert blobs(tmp_path, "org/plain") == []


def test_no_memory(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srt.hub.repository.memory_available", lambda: 2**29 + 2**20)
    with pytest.raises(ConfigError, match=r"weights take 16\.0 MiB of memory, and 1\.0 MiB"):
        fetch(HubName("org/plain"))
    assert blobs(tmp_path, "org/plain") == []
    assert fetch(HubName("org/plain"), checks_memory=False).is_dir()


def test_two_processes_bring_one_file(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_STILL_S", 0.0)
    folder = tmp_path / "hub" / "models--org--plain" / "blobs"
    folder.mkdir(parents=True)
    with (folder / f"{etag_of(LARGE)}.srt-incomplete").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process holds"):
            fetch(HubName("org/plain"))
    assert (fetch(HubName("org/plain")) / "model.safetensors").read_bytes() == LARGE


def test_a_wait_for_another_process_can_be_ended(hub: Hub, tmp_path: Path) -> None:
    """And one that has removed its file, as it was damaged, is not waited for."""
    target, progress = tmp_path / "model", Progress("model", len(LARGE))
    wanted = transfer.Wanted("model", f"{hub.url}/nowhere", {}, len(LARGE))
    partial = tmp_path / "model.srt-incomplete"
    with partial.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        progress.end()
        with pytest.raises(InterruptedError):
            transfer.bring(wanted, target, progress)
        partial.unlink()
        with transfer._alone(partial, progress) as other:
            assert other.tell() == 0 and partial.exists()


def test_what_may_be_of_another_version_is_begun_anew(hub: Hub, tmp_path: Path) -> None:
    target, url = tmp_path / "model", f"{hub.url}/org/plain/resolve/main/model.safetensors"
    (tmp_path / "model.srt-incomplete").write_bytes(b"of another version")
    wanted = transfer.Wanted("model", url, {}, len(LARGE), goes_on=False)
    with Progress("model", len(LARGE)) as progress:
        transfer.bring(wanted, target, progress)
    assert target.read_bytes() == LARGE


def test_an_interrupt_ends_all_downloads(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    add, calls = Progress.add, []

    def interrupted(self: Progress, num_bytes: int) -> None:
        calls.append(num_bytes)
        if len(calls) == 1:
            raise KeyboardInterrupt
        add(self, num_bytes)

    monkeypatch.setattr(Progress, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(HubName("org/sharded"))
    monkeypatch.setattr(Progress, "add", add)
    assert (fetch(HubName("org/sharded")) / SHARDS[0]).read_bytes() == LARGE


def test_names_that_are_given(hub: Hub) -> None:
    here = model_here("org/gguf:q4_0")
    assert here.name == "org/gguf:q4_0" and here.model.endswith("/a-Q4_0.gguf")
    assert model_here("smollm2") == ("smollm2", "")
    assert model_here(f"{hub.url}/org/gguf/resolve/main/a-Q4_0.gguf").model == here.model


def test_the_cache_lists_them(hub: Hub) -> None:
    fetch(HubName("org/plain"))
    fetch(HubName("org/gguf", variant="Q4_0"))
    found = {each.repo: {file.path for file in each.files} for each in snapshots()}
    assert found == {
        "org/plain": {"config.json", "model.safetensors", "tokenizer.json"},
        "org/gguf": {"a-Q4_0.gguf"},
    }


def test_a_file_of_another_server(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with running_hub(Hub({"": Repo({"a-Q4_0.gguf": LINKED})})) as other:
        url = f"{other.url}/elsewhere/a-Q4_0.gguf"
        here = model_here(url)
        assert here.name == "a-Q4_0" and Path(here.model).read_bytes() == LINKED
        other.asked.clear()
        assert model_here(url) == here
        assert other.asked == ["HEAD /elsewhere/a-Q4_0.gguf"] and other.tokens == {""}
        with pytest.raises(ConfigError, match="404"):
            model_here(f"{other.url}/elsewhere/b.gguf")
        other.asked.clear()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert model_here(url) == here and other.asked == []
        monkeypatch.delenv("HF_HUB_OFFLINE")
    assert model_here(url) == here


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server that is no hub."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with running_hub(Hub({"": Repo({"a.gguf": LINKED})})) as other:
        yield other


@pytest.mark.parametrize("status", [403, 405, 501])
def test_servers_that_refuse_head(other: Hub, status: int) -> None:
    other.refuses_head = status
    assert Path(model_here(f"{other.url}/elsewhere/a.gguf").model).read_bytes() == LINKED
    assert other.ranges == ["bytes=0-0"]  # and then all of it


def test_a_new_signature_is_the_same_file(other: Hub) -> None:
    here = model_here(f"{other.url}/elsewhere/a.gguf?signature=1")
    other.asked.clear()
    assert model_here(f"{other.url}/elsewhere/a.gguf?signature=2") == here
    assert other.asked == ["HEAD /elsewhere/a.gguf"]
    other.tells_version = False
    first, second = (model_here(f"{other.url}/elsewhere/a.gguf?id={i}") for i in (1, 2))
    assert len({here.model, first.model, second.model}) == 3


def test_a_server_that_tells_no_size(other: Hub, caplog: pytest.LogCaptureFixture) -> None:
    other.tells_size = False
    with caplog.at_level("INFO"):
        here = model_here(f"{other.url}/elsewhere/a.gguf")
    assert Path(here.model).read_bytes() == LINKED
    assert any("of unknown size" in message for message in caplog.messages)


def test_links_that_cannot_be_had(other: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a" * 200, "a%0ab", "a%00b", ""):
        with pytest.raises(ConfigError, match="must be printable, and at most 200 bytes"):
            model_here(f"{other.url}/elsewhere/{name}.gguf")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="was not brought before, and HF_HUB_OFFLINE is set"):
        model_here(f"{other.url}/elsewhere/a.gguf")
    assert other.asked == []


def test_without_the_server_only_the_very_address_counts(
    other: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query may choose the file."""
    here = model_here(f"{other.url}/elsewhere/a.gguf?id=1")
    other.repos[""].files["a.gguf"] = LINKED[::-1].replace(LINKED[::-1][:4], b"GGUF")
    later = model_here(f"{other.url}/elsewhere/a.gguf?id=2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert here != later
    assert model_here(f"{other.url}/elsewhere/a.gguf?id=1") == here
    assert model_here(f"{other.url}/elsewhere/a.gguf?id=2") == later
    with pytest.raises(ConfigError, match="was not brought before"):
        model_here(f"{other.url}/elsewhere/a.gguf?id=3")


@pytest.mark.full
def test_a_model_in_several_files_of_another_server(
    other: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {f"m-0000{i}-of-00002.gguf": LINKED + b"%d" % i for i in (1, 2)}
    other.repos[""].files |= parts
    here = model_here(f"{other.url}/elsewhere/m-00001-of-00002.gguf?key=1")
    folder = Path(here.model).parent
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == parts
    other.asked.clear()
    assert model_here(f"{other.url}/elsewhere/m-00001-of-00002.gguf?key=1") == here
    assert [each.split()[0] for each in other.asked] == ["HEAD", "HEAD"]
    assert here.name == "m"
    assert model_here(f"{other.url}/elsewhere/m-00002-of-00002.gguf").model == str(
        folder / "m-00002-of-00002.gguf"
    )
    (folder / "m-00002-of-00002.gguf").unlink()
    with monkeypatch.context() as offline:
        offline.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ConfigError, match="was not brought before"):
            model_here(f"{other.url}/elsewhere/m-00001-of-00002.gguf?key=1")
    asked_for = []
    monkeypatch.setattr("srt.hub.link.check_disk", lambda _, size, __: asked_for.append(size))
    assert model_here(f"{other.url}/elsewhere/m-00001-of-00002.gguf?key=1") == here
    assert asked_for == [len(LINKED) + 1]  # of what is not there
    del other.repos[""].files["m-00002-of-00002.gguf"]
    with pytest.raises(ConfigError, match="the server answered 404"):
        model_here(f"{other.url}/elsewhere/m-00001-of-00002.gguf?key=1")
    with pytest.raises(ConfigError, match="more than 256 parts"):
        model_here(f"{other.url}/elsewhere/m-00001-of-99999.gguf")


def test_a_cache_of_somebody_else(other: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    here = model_here(f"{other.url}/elsewhere/a.gguf?signature=1")

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refused)
    assert model_here(f"{other.url}/elsewhere/a.gguf?signature=1") == here
    assert model_here(f"{other.url}/elsewhere/a.gguf?signature=2") == here


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ({"refuses_get": 403}, "the server answered 403; is the address still good"),
        ({"refuses_get": 500}, "the server answered 500"),
        ({"encoding": "gzip"}, "the server sends it as gzip only"),
    ],
)
def test_errors_hold_no_query(other: Hub, trouble: dict[str, Any], message: str) -> None:
    for name, value in trouble.items():
        setattr(other, name, value)
    host = other.url.replace("http://", "http://me:secret@")
    address = f"{host}/elsewhere/a.gguf?signature=secret"
    with pytest.raises(ConfigError, match=message) as caught:
        model_here(address)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_what_is_no_model_is_not_kept(other: Hub, tmp_path: Path) -> None:
    other.repos[""].files["a.gguf"] = b"<html>sign in</html>"
    with pytest.raises(ConfigError, match="what the server sent is no GGUF file"):
        model_here(f"{other.url}/elsewhere/a.gguf")
    assert [*tmp_path.rglob("*.gguf")] == []
