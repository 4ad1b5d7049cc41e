"""What a page of somebody else may try with a server, in the browser of the server's user.

By fetch, forms, pictures, scripts, beacons and WebSockets, as a page of another origin and, by DNS
rebinding, as one of the server's own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.e2e.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

# What each way gets: "nothing", or what the page could read.
TRY = """
const text = (answer) => answer.type === 'opaque' ? 'nothing' : answer.text();
const read = (asked) => asked.then(text, () => 'nothing');
const send = (path, body, more = {}) => read(fetch(server + path, {method: 'POST', body, ...more}));
const simple = {mode: 'no-cors', headers: {'content-type': 'text/plain'}};
const json = {headers: {'content-type': 'application/json'}};
const load = (tag, src) => new Promise((done) => {
  const element = document.createElement(tag);
  element.onload = () => done('loaded');
  element.onerror = () => done('nothing');
  element.src = src;
  document.body.append(element);
});
const submit = (path, type) => new Promise((done) => {
  const frame = document.createElement('iframe');
  frame.name = path + type;
  document.body.append(frame);
  const form = document.createElement('form');
  Object.assign(form, {action: server + path, method: 'POST', enctype: type, target: frame.name});
  const field = document.createElement('input');
  Object.assign(field, {name: '{"text": "a", "x', value: '": 1}'});
  form.append(field);
  document.body.append(form);
  frame.onload = () => done('nothing');  // what it has loaded, this page cannot read
  form.submit();
});
const socket = (path) => new Promise((done) => {
  const opened = new WebSocket(server.replace('http', 'ws') + path);
  opened.onopen = () => done('open');
  opened.onerror = () => done('nothing');
});
const GENERATE = '{"text": "a", "sampling_params": {"max_new_tokens": 2}}';
"""
WAYS = {
    "fetch of text, pause": "send('/pause_generation', '{}', simple)",
    "fetch of text, abort": """send('/abort_request', '{"abort_all": true}', simple)""",
    "fetch of text, generate": "send('/generate', GENERATE, simple)",
    "fetch of JSON": "send('/generate', GENERATE, json)",
    "form of text": "submit('/generate', 'text/plain')",
    "form": "submit('/pause_generation', 'application/x-www-form-urlencoded')",
    "picture": "load('img', server + '/flush_cache')",
    "script": "load('script', server + '/server_info')",
    "fetch of metrics": "read(fetch(server + '/metrics'))",
    "beacon": "navigator.sendBeacon(server + '/flush_cache') ? 'nothing' : 'not sent'",
    "WebSocket": "socket('/generate')",
}
REBOUND = {
    "read": "read(fetch('/server_info'))",
    "generate": "send('/generate', GENERATE, json)",
    "flush": "send('/flush_cache', '')",
    "flush by GET": "read(fetch('/flush_cache'))",
    "metrics": "read(fetch('/metrics'))",
}
COUNTERS = (
    "num_requests_total",
    "forward_steps_total",
    "num_cached_tokens",
    "evicted_tokens_total",
)


@contextmanager
def empty_pages() -> Iterator[int]:
    """A web server of somebody else, whose pages are empty; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title><link rel=icon href=data:,><body>")

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield httpd.server_port
        httpd.shutdown()


def state_of(server: Server) -> dict[str, float]:
    """What an attack would change."""
    stats = server.wait_idle()
    return {name: stats[name] for name in COUNTERS}


def outcomes(page: Page, server: str, ways: Mapping[str, str]) -> tuple[dict[str, str], list[int]]:
    """What `page` has got by each of `ways` from the server at this address, and the statuses of
    all answers that the browser reports."""
    statuses: list[int] = []
    page.on("response", lambda r: statuses.append(r.status) if r.url.startswith(server) else None)
    steps = "".join(f"got[{name!r}] = await {way};" for name, way in ways.items())
    script = f"async (server) => {{ {TRY} const got = {{}}; {steps} return got; }}"
    return page.evaluate(script, server), statuses
