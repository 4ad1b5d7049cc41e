"""The tenants of the gateway's requests: callers by key or address."""

import asyncio
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from srt.args import PATHS, ServerArgs
from srt.gateway.limits.keys import KeyFiles, Keys
from srt.options.table import all_options
from srt.wire.errors import OVERLOADED, RATE_LIMITED, RequestError
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process

ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/generate", {"text": "a"}),
    ("/v1/completions", {"prompt": "a"}),
    ("/tokenize", {"prompt": "a"}),
    ("/score_choices", {"text": "a", "continuations": ["b"]}),
)


async def tenants(client: FakeClient, key: str | None, **info: Any) -> set[str]:
    """The tenants that the ring received with requests of every kind."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with in_process(client, **info) as http:
        for path, body in ASKED:
            assert (await http.post(path, json=body, headers=headers)).status_code == 200
    asked: list[Any] = [*client.requests, *client.tokenized, *client.scores]
    assert len(asked) == len(ASKED)
    return {request.tenant for request in asked}


async def test_without_keys_it_is_the_address() -> None:
    assert await tenants(FakeClient(), None) == {"ip:127.0.0.1"}
    assert await tenants(FakeClient(), "ignored") == {"ip:127.0.0.1"}


async def test_with_keys_it_is_a_digest_of_the_key() -> None:
    keys = ("first", "second")
    (first,) = await tenants(FakeClient(), "first", api_keys=keys)
    (second,) = await tenants(FakeClient(), "second", api_keys=keys)
    assert first != second and len(first) == len(second) == 16
    assert "first" not in first


# ---- with keys, callers are apart ----------------------------------------------------------------

KEYS: dict[str, Any] = {"api_keys": ("first", "second"), "admin_keys": ("root",)}
ADMINS = [
    ("POST", "/flush_cache"),
    ("POST", "/start_profile"),
    ("POST", "/stop_profile"),
    ("POST", "/pause_generation"),
    ("POST", "/continue_generation"),
    ("GET", "/metrics"),
]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def salts(key: str, salt: str = "", **info: Any) -> set[str]:
    """The cache salts that the ring received with requests of every kind."""
    client = FakeClient()
    async with in_process(client, **info) as http:
        for path, body in ASKED:
            if path != "/tokenize":
                given = {**body, "cache_salt": salt}
                answer = await http.post(path, json=given, headers=bearer(key))
                assert answer.status_code == 200
    asked: list[Any] = [*client.requests, *client.scores]
    return {request.cache_salt for request in asked}


async def test_each_key_has_a_part_of_the_cache() -> None:
    (first,), (second,) = await salts("first", **KEYS), await salts("second", **KEYS)
    (salted,) = await salts("first", "s", **KEYS)
    assert len({first, second, salted, "", "s"}) == 5
    assert await salts("first", **KEYS) == {first}


async def test_what_nobody_can_guess_is_shared() -> None:
    assert await salts("any", "s") == {"s"}  # a server without keys
    assert await salts("first", "s", **KEYS, share_cache_between_keys=True) == {"s"}


async def test_a_long_salt_is_refused_as_without_keys() -> None:
    async with in_process(FakeClient(), **KEYS) as http:
        body = {"text": "a", "cache_salt": "s" * 257}
        answer = await http.post("/generate", json=body, headers=bearer("first"))
    assert error_of(answer)["param"] == "cache_salt"


@pytest.mark.parametrize(("method", "path"), ADMINS)
async def test_what_concerns_all_needs_an_admins_key(method: str, path: str) -> None:
    async with in_process(FakeClient(), **KEYS) as http:
        refused = await http.request(method, path, headers=bearer("first"))
        assert refused.status_code == 403
        error = error_of(refused)
        assert (error["code"], error["type"]) == ("forbidden", "permission_error")
        await http.post("/start_profile", headers=bearer("root"))
        assert (await http.request(method, path, headers=bearer("root"))).status_code == 200
        assert (await http.request(method, path, headers=bearer("no"))).status_code == 401


async def test_statistics_are_for_admins() -> None:
    async with in_process(FakeClient(), **KEYS) as http:
        first = (await http.get("/server_info", headers=bearer("first"))).json()
        root = (await http.get("/server_info", headers=bearer("root"))).json()
    assert first["internal_states"] == [] and root["internal_states"] != []


PATH = "/models/tiny.gguf"
OPTIONS = dict.fromkeys(PATHS, "/secret/file") | {"port": 30000}


@pytest.mark.parametrize(("key", "tells"), [("first", False), ("root", True), ("", True)])
async def test_paths_are_for_admins(key: str, tells: bool) -> None:
    info: dict[str, Any] = (KEYS if key else {}) | {"server_args": OPTIONS}
    async with in_process(FakeClient(), **info) as http:
        routes = ("/server_info", "/model_info", "/v1/models", "/v1/models/tiny")
        said = [(await http.get(path, headers=bearer(key))).json() for path in routes]
    name = PATH if tells else "tiny.gguf"
    assert said[0]["model_path"] == said[1]["model_path"] == said[1]["tokenizer_path"] == name
    assert said[2]["data"][0]["root"] == said[3]["root"] == name
    assert {option for option in PATHS if option in said[0]} == (PATHS if tells else set())
    assert said[0]["port"] == 30000


HUB = "/home/me/.cache/huggingface/hub/"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (HUB + "models--org--a-model/snapshots/0123abc", "org/a-model"),
        (HUB + "models--org--a-GGUF/snapshots/0123abc/BF16/a-q4.gguf", "org/a-GGUF"),
        (HUB + "models--gpt2/snapshots/0123abc", "gpt2"),
        ("/home/me/snapshots/a-model", "a-model"),
        ("/snapshots/a-model", "a-model"),
        ("/models--org--b/a-model", "a-model"),
        ("/", "/"),
    ],
)
async def test_a_model_of_the_hubs_cache_has_its_name_there(path: str, name: str) -> None:
    async with in_process(FakeClient(), **KEYS, model_path=path) as http:
        info = (await http.get("/get_model_info", headers=bearer("first"))).json()
    assert info["model_path"] == name


def test_options_that_are_paths_are_known_to_be() -> None:
    addresses = {"kv_events", "kv_events_replay"}
    assert {option.field for option in all_options() if option.is_path} | addresses == PATHS


@pytest.mark.parametrize("info", [{}, {"api_keys": ("only",)}, {"admin_keys": ("only",)}])
async def test_who_is_alone_is_an_admin(info: dict[str, Any]) -> None:
    async with in_process(FakeClient(), **info) as http:
        for method, path in ADMINS:
            assert (await http.request(method, path, headers=bearer("only"))).status_code == 200


async def test_an_abort_finds_only_the_callers_own() -> None:
    """The same id of two callers means two requests, and neither learns of the other's."""
    client = FakeClient()
    client.hold.clear()
    async with in_process(client, **KEYS) as http:

        async def abort(key: str, **body: Any) -> httpx2.Response:
            return await http.post("/abort_request", json=body, headers=bearer(key))

        bodies: list[dict[str, Any]] = [
            {"text": "a", "rid": "one"},
            {"text": ["a", "b"], "rid": "batch"},
        ]
        posts = [
            asyncio.ensure_future(http.post("/generate", json=body, headers=bearer(key)))
            for key in ("first", "second")
            for body in bodies
        ]
        await client.wait_submitted(6)
        assert (await abort("first", rid="one")).json() == {"aborted": ["one"]}
        assert (await abort("first", rid="batch")).json() == {"aborted": ["batch_0", "batch_1"]}
        everything = await abort("first", rid="", prefix=True)
        assert everything.status_code == 400
        assert (await abort("first", rid="o", prefix=True)).json() == {"aborted": ["one"]}
        assert (await abort("first", abort_all=True)).status_code == 403
        assert (await abort("root", rid="one")).json() == {"aborted": ["one", "one"]}
        assert len((await abort("root", abort_all=True)).json()["aborted"]) == 6
        owners = {name for name, _ in client.aborted_names}
        client.hold.set()
        await asyncio.gather(*posts)
    assert len(owners) == 2


@pytest.mark.parametrize("code", [OVERLOADED, RATE_LIMITED])
async def test_one_callers_refusal_for_load_is_not_anothers(code: str) -> None:
    """Only a caller with many requests waiting would wait for long."""
    client = FakeClient()
    client.refusals[0] = RequestError("busy", code=code, retryable=True, retry_after_s=60.0)
    async with in_process(client, **KEYS) as http:
        answers = [
            await http.post("/generate", json={"text": "a"}, headers=bearer(key))
            for key in ("first", "first", "second")
        ]
    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert len(client.requests) == 2


# ---- the keys' files -----------------------------------------------------------------------------


def test_no_key_becomes_an_admins_because_the_others_have_gone() -> None:
    for before, is_admin in ((["one"], True), (["one", "two"], False)):
        later = Keys(["one"], may_be_sole=Keys(before).is_sole)
        assert (caller := later.caller("one", "")) and caller.is_admin is is_admin


def test_keys_of_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = {name: tmp_path / name for name in ("api_key_file", "admin_api_key_file")}
    files["api_key_file"].write_text("one\ntwo\n")
    files["admin_api_key_file"].write_text("root\n")
    for path in files.values():
        path.chmod(0o600)
    given: dict[str, Any] = {name: str(path) for name, path in files.items()}
    args = ServerArgs(**given)
    keys = Keys.of(args)
    assert [(c := keys.caller(key, "")) and c.is_admin for key in ("one", "root")] == [False, True]
    assert keys.caller("three", "") is None and not caplog.records
    files["api_key_file"].chmod(0o644)
    Keys.of(args)
    (record,) = caplog.records
    assert str(files["api_key_file"]) in record.message and "644" in record.message
    assert "one" not in caplog.text.replace("everyone", "")


def test_changes_of_a_file_of_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bad files change nothing, and one that is corrected later is read."""
    path, other = tmp_path / "keys", tmp_path / "other"
    path.write_text("one\ntwo\n")
    files = KeyFiles(ServerArgs(api_key_file=str(path)))

    def settled() -> list[str]:
        """The accepted keys, when nobody has written the file for a while."""
        files.have_changed()
        before = files.keys
        assert files.have_changed() is (files.keys is not before)
        assert not files.have_changed()
        return [key for key in ("one", "two", "three") if files.keys.caller(key, "")]

    assert settled() == ["one", "two"]
    path.write_text("two\nthr")
    assert not files.have_changed()  # it is being written
    path.write_text("two\nthree\n")
    assert not files.have_changed() and files.keys.caller("one", "")
    assert settled() == ["two", "three"]
    other.write_text("one\n")
    other.replace(path)
    assert settled() == ["one"]

    def fifo() -> None:
        path.unlink()
        os.mkfifo(path)

    def link() -> None:
        path.unlink()
        path.symlink_to(tmp_path / "missing")

    for spoil, reason in (
        (lambda: path.write_text(""), "has no keys"),
        (lambda: path.write_text("one\ntwo words\n"), "line 2: word 2 is none of"),
        (lambda: path.write_text("two share=0\n"), "line 1: share='0' must be a number"),
        (lambda: path.write_bytes(b"\xff\n"), "it is not text"),
        (lambda: path.write_text("two\n" * 2**19), "must be a file of at most"),
        (path.unlink, "No such file"),
        (path.mkdir, "must be a file"),
        (path.rmdir, "No such file"),
        (path.touch, "has no keys"),
        (fifo, "must be a file"),
        (link, "No such file"),
    ):
        caplog.clear()
        spoil()
        assert settled() == ["one"]
        assert "stay as they were" in caplog.messages[-1] and reason in caplog.messages[-1]
    (tmp_path / "missing").write_text("three\n")
    assert settled() == ["three"]


def test_a_file_of_keys_that_may_be_read_only_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read then, although its contents have not changed since."""
    path = tmp_path / "keys"
    path.write_text("one\n")
    path.chmod(0o600)
    files = KeyFiles(ServerArgs(api_key_file=str(path)))
    with monkeypatch.context() as context:
        context.setattr(Path, "read_text", Mock(side_effect=PermissionError(13, "not allowed")))
        path.write_text("two\n")
        assert [files.have_changed() for _ in range(3)] == [False] * 3
    path.chmod(0o400)
    assert [files.have_changed() for _ in range(3)] == [False, True, False]
    assert files.keys.caller("two", "") and not files.keys.caller("one", "")


def test_who_may_change_keys_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n")
    for mode, what in ((0o602, "change"), (0o606, "read and change")):
        caplog.clear()
        path.chmod(mode)
        Keys.of(ServerArgs(api_key_file=str(path)))
        assert f"every user can {what} the API keys" in caplog.text
