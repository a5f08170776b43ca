"""A loopback server for downloads from the hub, with and without faults."""

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PATH = "/datasets/codeparrot/apps/resolve/"


@dataclass
class HubServer:
    """Serves one file at the address of the test split and keeps the requests for it.

    It also serves `files` by their paths, such as "/gpt2/resolve/main/config.json". The first
    `cuts` bodies break off in the middle, and the first `damages` have a wrong byte though their
    length is right.
    """

    content: bytes
    cuts: int = 0
    damages: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def url(self) -> str:
        """What clients call HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def bodies(self) -> list[str]:
        """The ranges of the requests that asked for content."""
        return [given for method, given in self.requests if method == "GET"]


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Send the headers of the file."""
        self._respond(body=False)

    def do_GET(self) -> None:
        """Send the file, or the requested range."""
        self._respond(body=True)

    def _respond(self, *, body: bool) -> None:
        hub: HubServer = self.server.hub  # type: ignore[attr-defined]
        given = self.headers.get("Range", "")
        whole = hub.content if self.path.startswith(PATH) else hub.files.get(self.path)
        if whole is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        hub.requests.append((self.command, given))
        start = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
        content = whole[start:]
        self.send_response(206 if given else 200)
        self.send_header("ETag", f'"{hashlib.sha256(whole).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        if given:
            last = len(whole) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(whole)}")
        self.end_headers()
        if body:
            self._send(hub, content)

    def _send(self, hub: HubServer, content: bytes) -> None:
        if hub.damages:
            hub.damages -= 1
            content = bytes([content[0] ^ 1]) + content[1:]
        if hub.cuts:
            hub.cuts -= 1
            content = content[: len(content) // 2]
            self.close_connection = True
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""
