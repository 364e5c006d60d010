"""A small server that speaks ``/v1/chat/completions``: deterministic, and as faulty as told.

It answers with what a function makes of the request, so a test scripts it; faults are a queue
that the next requests run into.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ModelServer", "serving"]

Replier = Callable[[dict[str, Any]], str]


class ModelServer:
    """Answers chat requests on a free port of the loopback address.

    Parameters
    ----------
    reply : callable
        Makes the text of the answer from the decoded request.
    formats : set of str
        Types of ``response_format`` that are taken (others get status 422), as
        ``json_schema``, ``json_object``.
    schema_beside : bool
        Whether ``json_object`` may come with a schema beside it.
    counts : bool
        Whether answers tell their usage.
    count : callable
        Tokens of a text, for that.

    Attributes
    ----------
    faults : deque of str
        Each request takes one: ``ok``, ``500``, ``429 2`` (Retry-After), ``401``, ``400``,
        ``hang``, ``drip``, ``close``, ``html``, ``empty``, ``length``, or ``say TEXT``.
    requests : list of dict
        Every decoded request.
    """

    def __init__(
        self,
        reply: Replier,
        *,
        formats: frozenset[str] = frozenset({"json_schema", "json_object"}),
        schema_beside: bool = True,
        counts: bool = True,
        count: Callable[[str], int] = lambda text: len(text.split()),
    ) -> None:
        self.reply = reply
        self.formats = formats
        self.schema_beside = schema_beside
        self.counts = counts
        self.count = count
        self.faults: deque[str] = deque()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.active = self.most_active = 0
        self.delay = 0.0
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        """What a client is given as ``base_url``."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def start(self) -> None:
        """Serve, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what hangs, and end."""
        self._released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def take(self, request: dict[str, Any], headers: dict[str, str]) -> tuple[str, str]:
        """The fault that this request runs into, and what else to answer."""
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            fault = self.faults.popleft() if self.faults else "ok"
        return fault, "" if fault != "ok" else self._refusal(request)

    def _refusal(self, request: dict[str, Any]) -> str:
        wanted = request.get("response_format")
        if wanted is None:
            return ""
        if wanted["type"] not in self.formats:
            return f"response_format {wanted['type']!r} is not supported"
        if wanted["type"] == "json_object" and "schema" in wanted and not self.schema_beside:
            return "unknown field response_format.schema"
        return ""

    def wait(self) -> None:
        """Take as long as told; how many do so at a time is counted."""
        with self._lock:
            self.active += 1
            self.most_active = max(self.most_active, self.active)
        time.sleep(self.delay)
        with self._lock:
            self.active -= 1

    def hang(self) -> None:
        """Answer nothing until the server stops."""
        self._released.wait(30)

    def completion(self, text: str, finish: str, request: dict[str, Any]) -> dict[str, Any]:
        """The document of an answer."""
        made: dict[str, Any] = {
            "object": "chat.completion",
            "model": request.get("model"),
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": finish,
                }
            ],
        }
        if self.counts:
            prompt = sum(self.count(message["content"]) for message in request["messages"])
            made["usage"] = {"prompt_tokens": prompt, "completion_tokens": self.count(text)}
        return made

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                try:
                    self._answer()
                except (BrokenPipeError, ConnectionResetError):
                    pass

            def _answer(self) -> None:
                size = int(self.headers["Content-Length"])
                request = json.loads(self.rfile.read(size))
                if self.path != "/v1/chat/completions":
                    self._send(404, {"error": {"message": f"no such path {self.path}"}})
                    return
                fault, refusal = server.take(request, dict(self.headers.items()))
                server.wait()
                kind, _, rest = fault.partition(" ")
                if refusal:
                    self._send(422, {"error": {"message": refusal}})
                elif kind == "ok":
                    text = server.reply(request)
                    self._send(200, server.completion(text, "stop", request))
                elif kind == "say":
                    self._send(200, server.completion(rest, "stop", request))
                elif kind == "length":
                    text = server.reply(request)
                    self._send(200, server.completion(text[: len(text) // 2], "length", request))
                elif kind == "html":
                    self._raw(200, b"<html>please log in</html>", {})
                elif kind == "empty":
                    self._send(200, {"choices": []})
                elif kind == "close":
                    self.close_connection = True
                elif kind == "hang":
                    server.hang()
                elif kind == "drip":
                    self.send_response(200)
                    self.end_headers()
                    while not server._released.wait(0.05):
                        self.wfile.write(b" ")
                        self.wfile.flush()
                else:
                    headers = {"Retry-After": rest} if rest else {}
                    self._send(int(kind), {"error": {"message": f"told to fail {kind}"}}, headers)

            def _send(
                self, status: int, document: object, headers: dict[str, str] | None = None
            ) -> None:
                self._raw(status, json.dumps(document).encode(), headers or {})

            def _raw(self, status: int, data: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def serving(reply: Replier, **options: Any) -> Iterator[ModelServer]:
    """A running `ModelServer`."""
    server = ModelServer(reply, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
