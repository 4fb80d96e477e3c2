"""A small website on the loopback interface: pages that behave, and pages that do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc

ARTICLE = " ".join(f"Sentence {number} of the article says something that is worth reading." for number in range(60))

PAGES = {
    "/": """<title>Home</title><h1>Welcome</h1><a href="/article">The article</a>
        <form action="/found"><input name="q" aria-label="Query"><button>Search</button></form>
        <select aria-label="Colour"><option value="r">Red</option><option value="g">Green</option></select>""",
    "/article": f"<title>Article</title><nav>Menu</nav><article><h1>On things</h1><p>{ARTICLE}</p></article>",
    "/scripted": """<title>Scripted</title><div id="here">empty</div>
        <script>fetch('/data').then(r => r.text()).then(text => here.textContent = text)</script>""",
    "/storage": """<title>Storage</title><p id="p"></p><script>
        const seen = localStorage.getItem('name'), cookie = document.cookie;
        document.getElementById('p').textContent = `storage ${seen} cookie ${cookie}`;
        localStorage.setItem('name', 'kept'); document.cookie = 'visit=1';</script>""",
    "/clicks": """<title>Clicks</title><button onclick="this.textContent = 'clicked'">Press me</button>
        <button onmouseover="this.textContent = 'touched'">Touch me</button>
        <script>onkeydown = event => document.title = 'key ' + event.key</script>""",
    "/dialogs": """<title>Dialogs</title><p id="p"></p>
        <script>alert('Mind the gap');
        p.textContent = `confirmed ${confirm('Sure?')} prompted ${prompt('Name?')}`</script>""",
    "/alerts": "<title>Alerts</title><button onclick='while (true) alert(1)'>Go</button>",
    "/leaving": """<title>Leaving</title><button>Touch</button>
        <script>onbeforeunload = event => event.preventDefault()</script>""",
    "/popups": """<title>Popups</title>
        <button onclick='for (let i = 0; i < 1000; i++) window.open("/article")'>Go</button>""",
    "/blank-link": "<title>Blank</title><a href='/article' target='_blank'>Elsewhere</a>",
    "/endless": "<title>Endless</title><button onclick='while (true) {}'>Go</button>",
    "/endless-at-once": "<title>Endless</title><script>setTimeout(() => { while (true) {} }, 300)</script>",
    "/late": """<title>Late</title><p id="p">Loading</p>
        <script>setTimeout(() => p.textContent = 'Arrived', 100)</script>""",
    "/covered": """<title>Covered</title><button>Under</button>
        <div style="position:fixed;inset:0;background:white">Over</div>""",
    "/files": "<title>Files</title><a href='/report.csv'>Report</a><a href='/huge.bin'>Huge</a>",
    "/flood": "<title>Flood</title><a href='/flood.bin'>Flood</a>",
    "/hungry-script": """<title>Hungry</title><script>const kept = [];
        setInterval(() => { for (let i = 0; i < 100; i++) kept.push(new Array(1e4).fill(0).map(Math.random)); }, 1)
        </script>""",
    "/hungry-buffers": """<title>Hungry</title><script>const kept = [];
        setTimeout(() => { while (true) kept.push(new Uint8Array(1 << 22).fill(1)); }, 300)</script>""",
    "/hungry-worker": """<title>Hungry</title><script>
        const code = 'const kept = []; while (true) kept.push(new Uint8Array(1 << 22).fill(1))';
        setTimeout(() => new Worker(URL.createObjectURL(new Blob([code]))), 300)</script>""",
    "/upload": "<title>Upload</title><input type='file' aria-label='Your file'>",
    "/tall": "<title>Tall</title><div style='height:9000px;background:linear-gradient(red,blue)'>Top</div>",
    "/noise": """<title>Noise</title><canvas id="c" width="1280" height="720"></canvas><script>
        const all = c.getContext('2d').createImageData(1280, 720);
        all.data.forEach((_, i) => all.data[i] = i % 4 == 3 ? 255 : Math.random() * 256);
        c.getContext('2d').putImageData(all, 0, 0);</script>""",
    "/long": "<title>Long</title>" + "".join(f"<button>Button {number}</button>" for number in range(2000)),
    "/wordy": """<title>Wordy</title><script>document.title = 't'.repeat(1e6);
        history.pushState(null, '', '/' + 'u'.repeat(1e6)); alert('a'.repeat(1e6))</script>""",
    "/mail": "<title>Mail</title><a href='mailto:a@b.example'>Write</a>",
    "/local-files": "<title>Local files</title><a href='file:///etc/passwd'>Passwords</a>",
    "/framed": """<title>Framed</title><h1>Around</h1><iframe src="/never"></iframe>
        <iframe src="file:///etc/passwd"></iframe>""",
}

Respond = Callable[[str], Awaitable[bytes]]


def answer(body: str | bytes, status: str = "200 OK", kind: str = "text/html; charset=utf-8", **headers: str) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(data)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@dataclass
class Website:
    """port: where it is. asked: the paths of all requests. pages: what else it has, to be filled by tests."""

    port: int
    asked: list[str] = field(default_factory=list)
    pages: dict[str, bytes] = field(default_factory=dict)
    never: anyio.Event = field(default_factory=anyio.Event)
    hanging: anyio.Event = field(default_factory=anyio.Event)
    flooded: anyio.Event = field(default_factory=anyio.Event)
    """Set when nobody takes any more of the file without end."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}{path}"

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await stream.receive()
                path = head.split()[1].decode()
                if path == "/flood.bin":
                    await self._flood(stream)
                await stream.send(await self._respond(path))
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass  # the browser has changed its mind

    async def _flood(self, stream: anyio.abc.SocketStream) -> None:
        """Send a file that has no end."""
        kind = b"Content-Type: application/octet-stream\r\nContent-Disposition: attachment\r\n\r\n"
        try:
            await stream.send(b"HTTP/1.1 200 OK\r\n" + kind)
            while True:
                await stream.send(b"x" * (1 << 16))
        finally:
            self.flooded.set()

    async def _respond(self, path: str) -> bytes:
        self.asked.append(path)
        parts = urlsplit(path)
        if path in self.pages:
            return self.pages[path]
        if parts.path == "/found":
            return answer(f"<title>Found</title><p>You asked for {parse_qs(parts.query)['q'][0]}</p>")
        if parts.path == "/redirect":
            return answer("", "302 Found", Location=parse_qs(parts.query)["to"][0])
        if parts.path == "/data":
            return answer("Fetched by a script", kind="text/plain")
        if parts.path == "/report.csv":
            return answer("a,b\n1,2\n", kind="text/csv", Content_Disposition='attachment; filename="../../re port.csv"')
        if parts.path == "/huge.bin":
            return answer(b"x" * 5000, kind="application/octet-stream", Content_Disposition="attachment")
        if parts.path == "/never":
            self.hanging.set()
            await self.never.wait()
        if parts.path in PAGES:
            return answer("<!doctype html>" + PAGES[parts.path])
        return answer("<title>Nothing</title>There is nothing here", "404 Not Found")


@asynccontextmanager
async def open_website() -> AsyncIterator[Website]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        website = Website(listener.extra(anyio.abc.SocketAttribute.local_port))
        tasks.start_soon(listener.serve, website.serve)
        yield website
        tasks.cancel_scope.cancel()
