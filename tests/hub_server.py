"""A server that speaks as much of the hub's API as downloads need, written by its documents, and
that can fail as the hub does."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LFS_BYTES = 1024  # the hub keeps larger files by their SHA-256


@dataclass
class Repo:
    """Files of one commit by their paths. `needs` is the token that opens it; `is_gated` says so to
    those without; `refs` are branches besides main."""

    files: dict[str, bytes]
    commit: str = "a" * 40
    refs: tuple[str, ...] = ("main",)
    needs: str = ""
    is_gated: bool = False


@dataclass
class Hub:
    """Repositories by name, and what is to go wrong. `asked` are the requests so far, as
    "METHOD /path"; `tokens` what they were authorised by."""

    repos: dict[str, Repo] = field(default_factory=dict)
    url: str = ""
    busy: list[int] = field(default_factory=list)  # statuses for the next requests
    retry_after: str = "0"
    cut_after: int | None = None  # bytes of a file, then the connection ends
    cuts: int = 0  # how often still
    damages: bool = False
    refuses_head: int = 0  # with this status
    refuses_get: int = 0
    encoding: str = ""
    tells_size: bool = True
    tells_version: bool = True
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    ranges: list[str] = field(default_factory=list)
    other: str = ""  # the address of another host, where large files lie


def etag_of(content: bytes) -> str:
    """SHA-256 of a large file, git's id of a small one."""
    if len(content) >= LFS_BYTES:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _lfs(key: str, content: bytes) -> dict[str, Any]:
    return {key: hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}


@contextmanager
def running_hub(hub: Hub) -> Iterator[Hub]:
    """`hub` at `hub.url`."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    served: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        if self.served.refuses_head:
            self._error(self.served.refuses_head, "")
        else:
            self._answer()

    def do_GET(self) -> None:
        if self.served.refuses_get:
            self._error(self.served.refuses_get, "")
        else:
            self._answer()

    def _answer(self) -> None:
        hub, path = self.served, unquote(urlsplit(self.path).path)
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        hub.asked.append(f"{self.command} {path}")
        hub.tokens.add(token)
        if hub.busy:
            self._error(hub.busy.pop(0), "", retry_after=hub.retry_after)
            return
        if path.startswith("/elsewhere/"):
            return self._file(hub.repos[""], path.removeprefix("/elsewhere/"), "")
        is_api = path.startswith("/api/models/")
        parts = path.removeprefix("/api/models/").strip("/").split("/")  # ORG, NAME, what, revision
        repo = hub.repos.get("/".join(parts[:2]))
        if repo is None:
            return self._error(401 if not token else 404, "RepoNotFound")
        if repo.needs and token != repo.needs:
            return self._refuse(repo, is_api, bool(token))
        revision = parts[3] if len(parts) > 3 else "main"
        if revision not in (*repo.refs, repo.commit):
            return self._error(404, "RevisionNotFound")
        if is_api and parts[2:3] == ["tree"]:
            return self._tree(repo)
        if is_api:
            return self._info(repo, "/".join(parts[:2]))
        self._file(repo, "/".join(parts[4:]), repo.commit)

    def _refuse(self, repo: Repo, is_api: bool, has_token: bool) -> None:
        if repo.is_gated:
            # Its page is public, its files are not.
            if is_api:
                return self._info(repo, "org/gated")
            return self._error(403 if has_token else 401, "GatedRepo")
        self._error(404 if has_token else 401, "RepoNotFound")

    def _info(self, repo: Repo, name: str) -> None:
        siblings = []
        for path, content in repo.files.items():
            about: dict[str, Any] = {"rfilename": path, "size": len(content)}
            if len(content) >= LFS_BYTES:
                about["lfs"] = _lfs("sha256", content)
            siblings.append(about)
        body = {"_id": "1", "id": name, "modelId": name, "sha": repo.commit, "siblings": siblings}
        self._send(200, json.dumps(body).encode(), {"content-type": "application/json"})

    def _tree(self, repo: Repo) -> None:
        entries = []
        for path, content in repo.files.items():
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if len(content) >= LFS_BYTES:
                entry["lfs"] = _lfs("oid", content)
            entries.append(entry)
        self._send(200, json.dumps(entries).encode(), {"content-type": "application/json"})

    def _file(self, repo: Repo, path: str, commit: str) -> None:
        hub = self.served
        if path not in repo.files:
            return self._error(404, "EntryNotFound")
        content = repo.files[path]
        headers = {"Accept-Ranges": "bytes"}
        if hub.encoding:
            headers["Content-Encoding"] = hub.encoding
        if hub.tells_version:
            headers["ETag"] = f'"{etag_of(content)}"'
        if commit:
            headers["X-Repo-Commit"] = commit
        if hub.other and len(content) >= LFS_BYTES and commit:
            headers |= {"X-Linked-Etag": headers.pop("ETag"), "X-Linked-Size": str(len(content))}
            headers["Location"] = f"{hub.other}/elsewhere/{path}"
            return self._send(302, b"", headers)
        if hub.damages and self.command == "GET" and len(content) >= LFS_BYTES:
            content = bytes(len(content))
        asked, status = self.headers.get("range", ""), 200
        if asked:
            hub.ranges.append(asked)
            start, end = (asked.removeprefix("bytes=") + "-").split("-")[:2]
            last = int(end or len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{last}/{len(content)}"
            content, status = content[int(start) : last + 1], 206
        self._send(status, content, headers)

    def _error(self, status: int, code: str, retry_after: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        if retry_after:
            headers["Retry-After"] = retry_after
        self._send(status, b"{}", headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        hub = self.served
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if hub.tells_size:
            self.send_header("Content-Length", str(len(content)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        is_cut = hub.cut_after is not None and hub.cuts > 0 and len(content) > hub.cut_after
        if is_cut:
            hub.cuts -= 1
            self.wfile.write(content[: hub.cut_after])
            self.close_connection = True
            self.connection.close()
        else:
            self.wfile.write(content)
