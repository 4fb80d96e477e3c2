"""Keeps the first answers of `toolhub stdio` for its next start, which gives them before the gateway is imported.

The next start begins with saved answers alone, so the kept ones are made from these alone, by the same gateway.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from pydantic_core import to_json

from toolhub.catalog.answers import SavedAnswers, answer_name, answers_may_be_saved
from toolhub.catalog.catalog import Catalog
from toolhub.catalog.first_answers import METHODS, AnswerSources, FirstAnswers, file_version, request_key
from toolhub.catalog.store import CatalogStore, program_files
from toolhub.config import Config, ServerSpec
from toolhub.errors import ToolhubError
from toolhub.model import ClientProfile, Json, Listener, RelayedRequest, ServerInfo, ToolInfo
from toolhub.serve.mcp.client import ClientRequest, McpClient
from toolhub.serve.mcp.gateway import Gateway
from toolhub.sessions.pool import offered_on_wire, offered_tools
from toolhub.task import HELLO, is_whole_list, saved_info

# The first requests of one client; it sends one of each kind.
_MOST_REQUESTS = 8
# A superset of the variables that the config uses, and what decides where the saved answers are.
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)", re.ASCII)
_STATE_VARIABLES = ("HOME", "XDG_STATE_HOME")

logger = logging.getLogger(__name__)


class FirstAnswersWriter:
    """Keeps the answers of one process.

    source: the config file. others: files that would be the config if they were there.
    """

    def __init__(self, kept: FirstAnswers, config: Config, *, source: Path, others: Iterable[str]) -> None:
        self._kept = kept
        self._config = config
        self._source = source
        self._others = list(others)
        self._requests: dict[str, ClientRequest] = {}
        self._writing = anyio.Lock()
        self._is_written = True

    async def keep(self, request: ClientRequest, tasks: anyio.abc.TaskGroup) -> None:
        """Keep the answers to this request and to those before it, as far as they are saved."""
        if request.method not in METHODS or len(self._requests) >= _MOST_REQUESTS:
            return
        hello = request.client.profile.hello if request.client is not None else None
        self._requests[request_key(hello, request.method, request.params)] = request
        self._is_written = False
        await self.finish(tasks)

    async def finish(self, tasks: anyio.abc.TaskGroup) -> None:
        """Wait until everything is kept."""
        async with self._writing:
            if self._is_written:
                return
            self._is_written = True
            try:
                await self._write(tasks)
            except OSError as exc:
                logger.debug("cannot keep the first answers: %s", exc)
            except Exception:  # the client has its answer; only the next start is slower
                logger.exception("cannot keep the first answers")

    async def _write(self, tasks: anyio.abc.TaskGroup) -> None:
        sources = self._sources()
        if sources is None:
            return
        state, answers = sources.state(), {}
        gateway = Gateway(self._config.hub, tasks)
        for key, request in list(self._requests.items()):
            task = SavedTask(request.task.specs, self._config.hub.state_path)
            answer = await gateway.respond(_repeated(request, task))
            if task.knows_everything and "result" in answer:
                answers[key] = to_json(answer["result"], inf_nan_mode="null").decode()
        if answers and state == sources.state():
            self._kept.keep(sources, state, answers)

    def _sources(self) -> AnswerSources | None:
        """Return what the answers are made from; None if that cannot be read again."""
        if file_version(str(self._source)) is None:
            return None
        specs, state = self._config.servers.values(), self._config.hub.state_path
        saved = [str(CatalogStore(state / folder).path(spec)) for spec in specs for folder in ("answers", "catalog")]
        programs = [path for spec in specs for path in program_files(spec).values()]
        variables = {*_VARIABLE.findall(self._source.read_text(errors="replace")), *_STATE_VARIABLES}
        return AnswerSources([str(self._source), *saved], [*programs, *self._others], sorted(variables))


class SavedTask:
    """The `GatewayTask` of the first requests: it knows what an equal task of the next start knows at once."""

    def __init__(self, specs: Mapping[str, ServerSpec], state: Path) -> None:
        self.id = "saved"
        self._specs = dict(specs)
        self.knows_everything = True
        self._catalog = Catalog(CatalogStore(state / "catalog"))
        self._answers = SavedAnswers(CatalogStore(state / "answers"))

    def __repr__(self) -> str:
        return f"<SavedTask servers={list(self._specs)}>"

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self._specs)

    @property
    def specs(self) -> Mapping[str, ServerSpec]:
        return self._specs

    async def describe(self, server: str, relayed: RelayedRequest, *, saved: bool = False) -> ServerInfo:
        info = saved_info(self._saved(server, relayed, HELLO))
        self.knows_everything = self.knows_everything and info is not None
        return info or ServerInfo(server, "", "")

    async def relay(self, server: str, relayed: RelayedRequest) -> Json:
        answer = self._saved(server, relayed, relayed.method)
        if answer is not None and is_whole_list(relayed, answer):
            return answer
        self.knows_everything = False
        return {}

    async def listen(self, server: str, relayed: RelayedRequest) -> Json:
        return await self.relay(server, relayed)

    async def notify(self, server: str, method: str, params: Mapping[str, Any] | None, listener: Listener) -> None:
        """No server is up."""

    async def tool_with_headers(self, server: str, name: str, profile: ClientProfile, *, ask: bool) -> ToolInfo | None:
        """No tool is called."""
        return None

    async def tools_for_client(
        self, profile: ClientProfile, servers: Collection[str] | None = None, *, fresh: bool = False
    ) -> dict[str, list[ToolInfo] | ToolhubError]:
        found: dict[str, list[ToolInfo] | ToolhubError] = {}
        for server in self.servers if servers is None else servers:
            spec = self.specs[server]
            tools = self._catalog.get("", spec)
            self.knows_everything = self.knows_everything and tools is not None
            found[server] = offered_tools(spec, tools or [])
        return found

    def offered(self, server: str, tools: list[Json]) -> list[Json]:
        return offered_on_wire(self.specs[server], tools)

    def _saved(self, server: str, relayed: RelayedRequest, method: str) -> Json | None:
        """Return what the server told an equal client."""
        spec = self.specs[server]
        may_be_saved = answers_may_be_saved(spec, spec.fingerprint())
        return self._answers.get(spec, answer_name(method, relayed.profile)) if may_be_saved else None


class _Nowhere:
    """The output of a request that no client has sent."""

    def send(self, message: Json) -> None: ...

    def close_early(self) -> None: ...


def _repeated(request: ClientRequest, task: SavedTask) -> ClientRequest:
    """Return an equal request of an equal client."""
    client = None
    if request.client is not None:
        client = McpClient(_Nowhere())
        client.profile = request.client.profile
    return replace(request, task=task, output=_Nowhere(), client=client)
