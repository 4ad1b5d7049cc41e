"""A local HTTP server that speaks a provider's format, gives scripted answers, and fails on order.

A `Format` checks each request as the provider's documents say, so that what they refuse is refused
here, and writes an answer whole or as a stream. The official packages' clients accept the same.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol


class Said(NamedTuple):
    """An answer. It is cut after `cut_after` events; after `error_after` of them, `error` comes."""

    text: str = ""
    thoughts: str = ""
    finish: str | None = None
    extra: Mapping[str, Any] = MappingProxyType({})
    cut_after: int | None = None
    error_after: int | None = None
    error: Any = None


class Fault(NamedTuple):
    """A response that is no answer."""

    status: int
    body: Any = None  # JSON, or bytes; None is the format's own
    headers: Mapping[str, str] = MappingProxyType({})


class Request(NamedTuple):
    """What came."""

    path: str
    headers: dict[str, str]
    body: Any


class Format(Protocol):
    """A provider's."""

    def refusal(self, request: Request) -> str | None:
        """Why the provider refuses the request; None if it takes it."""

    def error(self, status: int, message: str) -> Any:
        """The body of an error."""

    def streams(self, request: Request) -> bool:
        """Whether the answer is asked for as a stream."""

    def whole(self, said: Said, request: Request) -> Any:
        """The body of an answer."""

    def events(self, said: Said, request: Request) -> Sequence[bytes]:
        """The events of an answer."""

    def error_event(self, error: Any) -> bytes:
        """An error in a stream."""


class Scripted:
    """Gives `answers` in order, then always the last one; keeps the requests."""

    def __init__(self, form: Format, answers: Sequence[Said | Fault]) -> None:
        self.form = form
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.url = ""
        self._lock = threading.Lock()

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the requests."""
        return [request.body for request in self.requests]

    def answer_to(self, request: Request) -> Said | Fault:
        """The next answer, or a refusal."""
        with self._lock:
            self.requests.append(request)
            if (message := self.form.refusal(request)) is not None:
                return Fault(400, self.form.error(400, message))
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def serving(form: Format, *answers: Said | Fault) -> Iterator[Scripted]:
    """A server of 127.0.0.1 with its own threads."""
    script = Scripted(form, answers or [Said("yes")])

    class Handler(_Handler):
        scripted = script

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        script.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    scripted: Scripted

    def do_POST(self) -> None:
        form = self.scripted.form
        length = int(self.headers.get("content-length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, json.loads(self.rfile.read(length)))
        answer = self.scripted.answer_to(request)
        if isinstance(answer, Fault):
            body = form.error(answer.status, "no") if answer.body is None else answer.body
            self._send(answer.status, body, answer.headers)
        elif form.streams(request):
            self._stream(answer, form.events(answer, request))
        else:
            self._send(200, form.whole(answer, request), {})

    def _send(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        given = {"content-type": "application/json", "content-length": str(len(data))}
        for name, value in (given | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, answer: Said, events: Sequence[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        try:
            for number, event in enumerate(events):
                if number == answer.error_after:
                    self._chunk(self.scripted.form.error_event(answer.error))
                    break
                if number == answer.cut_after:
                    self.wfile.flush()
                    return  # without the end of the chunks
                self._chunk(event)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass  # the client has left

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def event(data: Any, name: str | None = None) -> bytes:
    """A server-sent event."""
    first = "" if name is None else f"event: {name}\n"
    return f"{first}data: {json.dumps(data)}\n\n".encode()


def pieces(text: str, size: int = 3) -> list[str]:
    """The text in pieces."""
    return [text[i : i + size] for i in range(0, len(text), size)]
