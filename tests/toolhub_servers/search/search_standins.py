"""Search services on loopback: they answer as the real ones do, fail as told, and remember what they were asked."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}


@dataclass(frozen=True)
class Answer:
    """drops: the connection is closed instead; never: there is no answer at all; held: not before that is set."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drops: bool = False
    never: bool = False
    held: anyio.Event | None = None

    def written(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        headers = {"content-type": "application/json", **self.headers, "content-length": str(len(body))}
        lines = [f"HTTP/1.1 {self.status} Told", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return "\r\n".join(lines).encode() + body


DROPPED = Answer(drops=True)
NEVER = Answer(never=True)


class StandIn:
    """One service. faults: given first, one for each request; then come the answers of `reply`."""

    def __init__(self, reply: Callable[[Request], Answer]) -> None:
        self.reply = reply
        self.faults: list[Answer] = []
        self.requests: list[Request] = []
        self.connections = 0
        self.url = ""
        self.asked = anyio.Event()

    async def serve(self, stream: ByteStream) -> None:
        self.connections += 1
        number = self.connections
        reader = BufferedByteReceiveStream(stream)
        try:
            async with stream:
                while True:
                    await self._exchange(reader, stream, number)
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass

    async def _exchange(self, reader: BufferedByteReceiveStream, stream: ByteStream, number: int) -> None:
        head = (await reader.receive_until(b"\r\n\r\n", 65536)).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.receive_exactly(int(headers.get("content-length", "0")))
        request = Request(method, target, headers, body, number)
        self.requests.append(request)
        self.asked.set()
        answer = self.faults.pop(0) if self.faults else self.reply(request)
        if answer.never:
            await anyio.sleep_forever()
        if answer.held is not None:
            await answer.held.wait()
        if answer.drops:
            raise anyio.EndOfStream
        await stream.send(answer.written())


@asynccontextmanager
async def standing_in(reply: Callable[[Request], Answer]) -> AsyncIterator[StandIn]:
    service = StandIn(reply)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    service.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, service.serve)
        yield service
        tasks.cancel_scope.cancel()


ORGANIC = [
    {
        "title": "Apple Inc. - Wikipedia",
        "link": "https://en.wikipedia.org/wiki/Apple_Inc.",
        "snippet": "Apple Inc. is an American technology company.",
        "sitelinks": [{"title": "History", "link": "https://en.wikipedia.org/wiki/History_of_Apple_Inc."}],
        "position": 1,
    },
    {
        "title": "苹果公司",
        "link": "https://zh.wikipedia.org/wiki/%E8%8B%B9%E6%9E%9C?a=%2F%20b",
        "snippet": "苹果公司 100%",
        "date": "Jan 3, 2026",
        "position": 2,
    },
]


def serper(request: Request) -> Answer:
    asked = request.json()
    parameters = {"q": asked["q"], "gl": asked["gl"], "hl": asked["hl"], "type": "search", "num": asked["num"]}
    return Answer(
        {
            "searchParameters": {**parameters, "engine": "google"},
            "answerBox": {"snippet": "A company.", "title": "Apple"},
            "knowledgeGraph": {"title": "Apple", "type": "Technology company"},
            "organic": ORGANIC,
            "peopleAlsoAsk": [{"question": "Who?", "snippet": "Steve.", "title": "W", "link": "https://w.example"}],
            "relatedSearches": [{"query": "apple store"}],
            "credits": 1,
        }
    )


def searxng(request: Request) -> Answer:
    page = int(request.query["pageno"])
    results = [
        {
            "url": f"https://example.org/{page}/{number}",
            "title": f"Title {number}",
            "content": f"Content {number}",
            "publishedDate": "2026-01-31T00:00:00" if number == 1 else None,
            "engine": "google",
            "score": 1.0,
            "category": "general",
        }
        for number in range(1, 21)
    ]
    return Answer(
        {
            "query": request.query["q"],
            "number_of_results": 0,
            "results": results,
            "answers": [],
            "infoboxes": [],
            "suggestions": [],
            "unresponsive_engines": [["brave", "timeout"]],
        }
    )


def exa(request: Request) -> Answer:
    found = [
        {
            "id": f"https://example.org/{number}",
            "url": f"https://example.org/{number}",
            "title": f"Title {number}",
            "author": None,
            "publishedDate": "2026-01-31T00:00:00.000Z",
            "highlights": [f"First {number}.", "Second."],
            "highlightScores": [0.5, 0.4],
        }
        for number in range(1, request.json()["numResults"] + 1)
    ]
    return Answer(
        {"requestId": "r1", "resolvedSearchType": "neural", "results": found, "costDollars": {"total": 0.005}}
    )


SECRET_ID, SECRET_KEY = "AKIDexample", "tencent-secret-key"


def tencent(request: Request) -> Answer:
    """Checks the signature as the service documents it, independently of how it was made."""
    if request.headers["authorization"] != tencent_authorization(request):
        error = {"Code": "AuthFailure.SignatureFailure", "Message": "The provided credentials could not be validated."}
        return Answer({"Response": {"Error": error, "RequestId": "r-1"}})
    asked = request.json()
    page = {
        "title": "北京",
        "date": "2026-01-31 00:00:00",
        "url": "https://example.cn/%E5%8C%97",
        "passage": "首都",
        "content": "",
        "site": "例子",
        "score": 0.9,
        "images": [],
        "favicon": "https://example.cn/f.ico",
    }
    pages = [json.dumps({**page, "title": f"北京 {number}"}, ensure_ascii=False) for number in range(asked["Cnt"])]
    return Answer(
        {"Response": {"Query": asked["Query"], "Pages": pages, "Version": "standard", "Msg": "", "RequestId": "r-2"}}
    )


def tencent_authorization(request: Request) -> str:
    def mac(key: bytes, text: str) -> bytes:
        return hmac.new(key, text.encode(), hashlib.sha256).digest()

    names = ["content-type", "host", "x-tc-action"]
    lines = [f"{name}:{request.headers[name].lower()}" for name in names]
    hashed = hashlib.sha256(request.body).hexdigest()
    canonical = "\n".join([request.method, request.path, "", *lines, "", ";".join(names), hashed])
    timestamp = request.headers["x-tc-timestamp"]
    day = request.headers["authorization"].split("/")[1]
    scope = f"{day}/wsa/tc3_request"
    key = mac(mac(mac(f"TC3{SECRET_KEY}".encode(), day), "wsa"), "tc3_request")
    signed = "\n".join(["TC3-HMAC-SHA256", timestamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    return (
        f"TC3-HMAC-SHA256 Credential={SECRET_ID}/{scope}, SignedHeaders={';'.join(names)}, "
        f"Signature={mac(key, signed).hex()}"
    )


def busy(code: str = "RequestLimitExceeded") -> Answer:
    return Answer({"Response": {"Error": {"Code": code, "Message": "Too many."}, "RequestId": "r-3"}})
