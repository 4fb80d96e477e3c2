"""Stand-ins for MiroThinker's HTTP services. Each answers at once, so a run measures the agent and its tools.

They are its model, Serper, Jina's reader and the model that sums pages up.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, cast

from benchmarks.common.result import Json

ANSWER = "forty-two"
SEARCH, SCRAPE = "search_and_scrape_webpage", "jina_scrape_llm_summary"
_CALL = """I need turn {turn}.

<use_mcp_tool>
<server_name>{server}</server_name>
<tool_name>{tool}</tool_name>
<arguments>
{arguments}
</arguments>
</use_mcp_tool>"""


@dataclass(frozen=True)
class ScriptedCall:
    """The call that the model makes in one turn."""

    server: str
    tool: str
    arguments: dict[str, str]


def scripted_call(turn: int) -> ScriptedCall:
    """Return a search and a page in turns. No two are equal."""
    if turn % 2 == 0:
        return ScriptedCall(SEARCH, "google_search", {"q": f"fact number {turn}"})
    arguments = {"url": f"https://example.org/{turn}", "info_to_extract": f"fact number {turn}"}
    return ScriptedCall(SCRAPE, "scrape_and_extract_info", arguments)


def wanted(turns: int) -> Counter[str]:
    """The requests to the tools' services that a whole run makes."""
    pages = turns // 2
    return Counter(search=turns - pages, page=pages, summary=pages)


class Services(ThreadingHTTPServer):
    """turns: after so many the model answers instead of calling a tool. counts: requests, by service."""

    daemon_threads = True
    block_on_close = False  # a client that keeps its connection would keep the end waiting

    def __init__(self, turns: int) -> None:
        super().__init__(("127.0.0.1", 0), _ServiceHandler)
        self.turns = turns
        self.counts: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that MiroThinker's .env and configs/mirothinker_1.7.yaml have."""
        return {
            "SERPER_API_KEY": "stand-in",
            "SERPER_BASE_URL": self.url,
            "JINA_API_KEY": "stand-in",
            "JINA_BASE_URL": f"{self.url}/page",
            "SUMMARY_LLM_API_KEY": "stand-in",
            "SUMMARY_LLM_BASE_URL": f"{self.url}/summary",
            "SUMMARY_LLM_MODEL_NAME": "stand-in",
            "E2B_API_KEY": "stand-in",
            "TENCENTCLOUD_SECRET_ID": "stand-in",
            "TENCENTCLOUD_SECRET_KEY": "stand-in",
        }

    def take_counts(self) -> Counter[str]:
        """The requests since the last time, without those to the agent's model."""
        counts, self.counts = self.counts, Counter()
        del counts["model"]
        return counts

    def says(self, messages: list[Json]) -> str:
        """What the agent's model says next: its turn is the number of its answers in the prompt."""
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn >= self.turns:
            return f"\\boxed{{{ANSWER}}}"
        call = scripted_call(turn)
        return _CALL.format(turn=turn, server=call.server, tool=call.tool, arguments=json.dumps(call.arguments))


class _ServiceHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        services = cast(Services, self.server)
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/search":
            self._answer("search", json.dumps(_hits(asked)))
        elif self.path == "/summary":
            self._answer("summary", json.dumps(_completion("The page says forty-two.")))
        else:
            self._answer("model", json.dumps(_completion(services.says(asked["messages"]))))

    def do_GET(self) -> None:
        self._answer("page", f"Title: A page\n\nThe page at {self.path} says forty-two.", "text/plain; charset=utf-8")

    def _answer(self, service: str, text: str, kind: str = "application/json") -> None:
        cast(Services, self.server).counts[service] += 1
        body = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Stderr belongs to failures."""


def _hits(asked: Json) -> Json:
    hits = [
        {"title": f"Result {n}", "link": f"https://example.org/{n}", "snippet": f"On {asked['q']}.", "position": n}
        for n in range(1, 11)
    ]
    return {"searchParameters": asked, "organic": hits, "credits": 1}


def _completion(text: str) -> Json:
    message = {"role": "assistant", "content": text}
    return {
        "id": "stand-in",
        "object": "chat.completion",
        "created": 0,
        "model": "stand-in",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050},
    }


@contextmanager
def open_services(turns: int) -> Iterator[Services]:
    services = Services(turns)
    Thread(target=services.serve_forever, daemon=True).start()
    try:
        yield services
    finally:
        services.shutdown()
        services.server_close()
