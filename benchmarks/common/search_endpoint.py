"""An endpoint on the loopback interface that answers as Serper does and notes what its connections cost.

A worker role: in a process of its own, so that no variant's numbers include its work.
"""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

from benchmarks.common.result import Json
from benchmarks.common.worker_main import Act

_HITS = 10
_PARAGRAPHS = 400


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate for 127.0.0.1, which is its own authority, and its key."""

    path: str
    key_path: str


def make_certificate(directory: Path) -> Certificate | None:
    """Return a new one; None where there is no openssl."""
    if shutil.which("openssl") is None:
        return None
    made = Certificate(str(directory / "certificate.pem"), str(directory / "key.pem"))
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", made.key_path, "-out", made.path]
    subprocess.run(["openssl", "req", *kind, *name, *files], check=True, capture_output=True)
    return made


@dataclass
class EndpointCounts:
    """What the endpoint counts. setup_s: for each connection, from accepting it to its first request."""

    connections: int = 0
    requests: int = 0
    setup_s: list[float] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Otherwise the end would wait for the thread of each connection that a client left open.
    block_on_close = False
    # Many clients connect at the same moment; beyond the backlog connections are reset.
    request_queue_size = 256

    def __init__(self, tls: ssl.SSLContext | None, delay_s: float, answer_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _SearchHandler)
        self.tls = tls
        self.delay_s = delay_s
        self.answer_s = answer_s
        self.counts = EndpointCounts()

    def handle_error(self, *_: Any) -> None:
        """Clients may go away without a word."""


class _SearchHandler(BaseHTTPRequestHandler):
    """One connection, in a thread of its own."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise an answer waits for the acknowledgement of its headers
    wbufsize = -1

    def setup(self) -> None:
        self._endpoint = cast(_Server, self.server)
        self._accepted: float | None = time.perf_counter()
        self._endpoint.counts.connections += 1
        time.sleep(self._endpoint.delay_s)
        if self._endpoint.tls is not None:
            self.request = self._endpoint.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def do_POST(self) -> None:
        """Serper's `/search`."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(self._endpoint.answer_s)
        hits = [
            {
                "title": f"Result {number} for {asked['q']}",
                "link": f"https://example.org/{number}",
                "snippet": f"Sentence {number} about {asked['q']}, as long as sentences in snippets usually are. " * 2,
                "position": number,
            }
            for number in range(1, _HITS + 1)
        ]
        answer = {"searchParameters": {"engine": "google", **asked}, "organic": hits, "credits": 1}
        self._answer("application/json", json.dumps(answer).encode())

    def do_GET(self) -> None:
        self._answer("text/html; charset=utf-8", _page().encode())

    def _answer(self, kind: str, body: bytes) -> None:
        counts = self._endpoint.counts
        counts.requests += 1
        if self._accepted is not None:
            counts.setup_s.append(time.perf_counter() - self._accepted)
            self._accepted = None
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Stdout belongs to the role, and stderr to failures."""


def _page() -> str:
    """An article with a little of everything: text, links, a drawing, a script that makes half of it."""
    text = "".join(
        f"<p id=p{number}>Paragraph {number} says something <a href='#p{number}'>worth reading</a>. {'Word ' * 40}</p>"
        for number in range(_PARAGRAPHS)
    )
    return f"""<!doctype html><title>An article</title>
        <style>body {{ font: 16px/1.5 sans-serif; max-width: 50em }} p:nth-child(odd) {{ color: #345 }}</style>
        <h1>An article</h1><canvas id=drawing width=800 height=300></canvas>{text}
        <script>
        const pen = document.getElementById('drawing').getContext('2d');
        for (let x = 0; x < 800; x += 4) pen.fillRect(x, 150 + 140 * Math.sin(x / 40), 3, 3);
        for (const p of [...document.querySelectorAll('p')]) document.body.append(p.cloneNode(true));
        </script>"""


@asynccontextmanager
async def open_endpoint(
    certificate: str | None = None, key: str | None = None, delay_s: float = 0.0, answer_s: float = 0.0
) -> AsyncIterator[Act]:
    """Answers anything with the port and the counts since the last time. A worker role.

    delay_s: of every new connection, before TLS, where certificate and key (files) say that there is any.
    answer_s: of every search.
    """
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
    server = _Server(tls, delay_s, answer_s)
    Thread(target=server.serve_forever, daemon=True).start()

    async def act(_: Json) -> Json:
        counts, server.counts = server.counts, EndpointCounts()
        return {"port": server.server_address[1], **vars(counts)}

    try:
        yield act
    finally:
        server.shutdown()
        server.server_close()
