"""A local server that speaks as much of the Hugging Face hub's protocol as fetching needs.

It can be told to misbehave: cut the connection in the middle of a file, send other bytes
than it states, lack a file, state another commit.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """State of the server, and what it was asked."""

    repository: str
    files: dict[str, bytes]
    commit: str = COMMIT
    cut_after: int | None = None  # bytes of a body after which the connection is closed
    cuts: int = 0  # how many more bodies are cut
    corrupt: set[str] = field(default_factory=set)  # files whose bytes are changed on the way
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> Hub:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def downloads(self, file: str) -> list[str | None]:
        """Range header of each GET of a file."""
        return [sent for method, name, sent in self.requests if method == "GET" and name == file]

    def siblings(self) -> list[Mapping[str, object]]:
        listing = []
        for name, body in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(body), "blobId": "b" * 40}
            if name.endswith((".onnx", ".onnx_data")):
                sha256 = hashlib.sha256(body).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(body), "pointerSize": 130}
            listing.append(entry)
        return listing


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            prefix = f"{hub.repository}/resolve/{hub.commit}/"
            if path.startswith(f"api/models/{hub.repository}"):
                revision = path.partition("/revision/")[2]
                if revision not in ("", "main", hub.commit):
                    self._refuse("RevisionNotFound", "Invalid rev id")
                    return
                answer = {
                    "id": hub.repository,
                    "modelId": hub.repository,
                    "sha": hub.commit,
                    "siblings": hub.siblings(),
                }
                self._send(200, json.dumps(answer).encode(), {}, body)
            elif path.startswith(prefix):
                self._file(path.removeprefix(prefix), body)
            else:
                self._refuse("RepoNotFound", "Repository not found")

        def _file(self, name: str, body: bool) -> None:
            asked = self.headers.get("Range")
            hub.requests.append((self.command, name, asked))
            if name not in hub.files:
                self._refuse("EntryNotFound", "Entry not found")
                return
            data = hub.files[name]
            headers = {
                "X-Repo-Commit": hub.commit,
                "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
                "Accept-Ranges": "bytes",
            }
            if name in hub.corrupt:
                data = bytes([data[0] ^ 1]) + data[1:]
            status = 200
            if asked:
                start = int(asked.removeprefix("bytes=").partition("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                data = data[start:]
                status = 206
            self._send(status, data, headers, body)

        def _refuse(self, code: str, message: str) -> None:
            headers = {"X-Error-Code": code, "X-Error-Message": message}
            self._send(404, message.encode(), headers, self.command == "GET")

        def _send(self, status: int, data: bytes, headers: Mapping[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if not body:
                return
            if hub.cuts > 0 and hub.cut_after is not None and len(data) > hub.cut_after:
                hub.cuts -= 1
                self.wfile.write(data[: hub.cut_after])
                self.wfile.flush()
                self.close_connection = True
                self.connection.close()
                return
            self.wfile.write(data)

    return Handler
