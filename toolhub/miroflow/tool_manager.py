"""`ToolManager`: the class that MiroFlow's agent loops call, on top of a hub.

It keeps what callers and log viewers rely on: shapes, error texts, log steps. It raises for cancellation, and NoHub
when no hub can be reached or started: an agent without tools is to stop, not to go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from toolhub.client.address import Address
from toolhub.errors import CallTimeout, ConfigError
from toolhub.miroflow.batch import Results, execute_in_groups, formatted
from toolhub.miroflow.outcome import HF_REFUSAL, BadArguments, Failure, failure_of, text_of
from toolhub.miroflow.params import PLAYWRIGHT
from toolhub.miroflow.profile import Profile, profile_named
from toolhub.miroflow.scraping import has_fallback, is_dataset_url, read_with_markitdown
from toolhub.miroflow.servers import Choice, Servers
from toolhub.miroflow.step_log import StepLog, logger
from toolhub.miroflow.tasks import HubAt, StartedHub
from toolhub.model import Json, ToolInfo

# A manager may serve many agents at once, and a foreign server may answer one call at a time. More processes are
# started only while all others work.
_INSTANCES = 4
_logged_origins: set[str] = set()


class ToolManagerProtocol(Protocol):
    """What an agent loop needs."""

    async def get_all_tool_definitions(self) -> Any: ...

    async def execute_tool_call(self, *, server_name: str, tool_name: str, arguments: dict[str, Any]) -> Any: ...


class ToolManager:
    """Drop-in for `miroflow_tools.manager.ToolManager`.

    Making one is cheap and starts nothing; it may then be used from any thread, event loop and forked child.
    """

    def __init__(
        self,
        server_configs: Iterable[Mapping[str, Any]],
        tool_blacklist: set[tuple[str, str]] | None = None,
        *,
        profile: str | Profile = "mirothinker",
        hub: str | None = None,
        hub_command: str | Sequence[str] | None = None,
        token: str | None = None,
        servers: str | None = None,
        run: str | None = None,
        tolerant: bool | None = None,
        strict: bool = False,
        legacy_errors: bool = False,
        enforce_blacklist: bool = False,
        max_instances: int = _INSTANCES,
    ) -> None:
        """server_configs: dicts with `name` and `params` (StdioServerParameters of any SDK, a dict, or a URL); without
        `params` the server is the hub's of that name.

        profile: which variant to be. hub: a hub's address (default TOOLHUB_URL, else a private hub, started by
        `hub_command` or TOOLHUB_COMMAND or what is installed). token: for that hub (default TOOLHUB_TOKEN).
        servers: `hub` (only servers of the hub's config), `mine` (only those of `params`) or `hub-then-mine` (the hub's
        where it has one of that name); default TOOLHUB_SERVERS, else hub-then-mine. run: the label under which the hub
        shares fairly between runs (default TOOLHUB_RUN). tolerant: answer calls with an error instead of raising NoHub
        (default: whether TOOLHUB_TOLERANT is 1). strict: let a timeout raise.
        legacy_errors: leave servers' error texts as they are. enforce_blacklist: refuse hidden tools, too.
        max_instances: processes per server while calls overlap.
        """
        self.server_configs = list(server_configs)
        self.server_dict: dict[str, Any] = {config["name"]: config.get("params") for config in self.server_configs}
        self.browser_session: Any = None  # the browser is a server like the others; kept for callers that look
        self.tool_blacklist = tool_blacklist if tool_blacklist else set()
        self.profile = profile_named(profile)
        self._strict = strict
        self._legacy_errors = legacy_errors
        self._enforces_blacklist = enforce_blacklist
        self._steps = StepLog(to_module=self.profile.logs_to_module)
        self._tolerant = os.environ.get("TOOLHUB_TOLERANT", "") == "1" if tolerant is None else tolerant
        address = hub or os.environ.get("TOOLHUB_URL")
        choice = Choice.of(servers or os.environ.get("TOOLHUB_SERVERS") or Choice.HUB_THEN_MINE.value)
        if choice is Choice.HUB and not address:
            raise ConfigError("TOOLHUB_SERVERS=hub (or servers=) needs a hub with servers: set TOOLHUB_URL, or hub=")
        self._servers = Servers(
            self.server_dict,
            HubAt(str(Address.parse(address))) if address else StartedHub(hub_command),
            self.profile,
            choice=choice,
            token=token if address else "",
            run=(os.environ.get("TOOLHUB_RUN", "") if run is None else run),
            max_instances=max_instances,
            on_origins=self._log_origins if address else None,
        )

    def __repr__(self) -> str:
        return f"<ToolManager {self.profile.name} servers={list(self.server_dict)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End this process's tools now rather than with the process. Idempotent; another use starts them again."""
        with anyio.CancelScope(shield=True):  # closing has its own deadline
            await self._servers.aclose()

    # --- logging ----------------------------------------------------------------------------------------------------

    @property
    def task_log(self) -> Any:
        """The log of the task at hand: bound in this context, else the one set last."""
        return self._steps.current

    @task_log.setter
    def task_log(self, task_log: Any) -> None:
        self._steps.bind(task_log)

    def set_task_log(self, task_log: Any) -> None:
        """Log to `task_log.log_step(level, step_name, message, metadata)` in this context and what it starts."""
        self._steps.bind(task_log)
        servers = list(self.server_dict)
        self._log("info", "ToolManager | Initialization", f"ToolManager initialized, loaded servers: {servers}")

    def _log_origins(self, table: str) -> None:
        """Into the program's log once per process, and into the log of each task."""
        if table not in _logged_origins:
            _logged_origins.add(table)
            logger.info("%s", table)
        if self.task_log:
            self._log("info", "ToolManager | Servers", table)

    def _log(self, level: str, step_name: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        self._steps.write(level, step_name, message, metadata)

    # --- what is configured -----------------------------------------------------------------------------------------

    def get_server_params(self, server_name: str) -> Any:
        """Return the server's parameters as they were given, or None."""
        return self.server_dict.get(server_name)

    def _is_huggingface_dataset_or_space_url(self, url: Any) -> bool:
        return is_dataset_url(url)

    def _should_block_hf_scraping(self, tool_name: str, arguments: Mapping[str, Any]) -> bool:
        return tool_name in self.profile.scrape_tools and is_dataset_url(arguments.get("url"))

    # --- definitions ------------------------------------------------------------------------------------------------

    async def get_all_tool_definitions(self) -> list[Json]:
        """Return ``{"name": <server>, "tools": [{"name", "description", "schema"}]}`` per config, in their order.

        A server that cannot be asked has ``[{"error": ...}]`` for its tools. The caller owns everything returned.
        Raises NoHub.
        """
        await self._require_hub()
        found: list[Json] = [{} for _ in self.server_configs]

        async def fetch(number: int, server: str) -> None:
            found[number] = {"name": server, "tools": await self._definitions_of(server)}

        async with anyio.create_task_group() as fetching:
            for number, config in enumerate(self.server_configs):
                fetching.start_soon(fetch, number, config["name"])
        return found

    async def _require_hub(self) -> None:
        if not self._tolerant:
            await self._servers.require_hub()

    async def _definitions_of(self, server: str) -> list[Json]:
        self._log("info", "ToolManager | Get Tool Definitions", f"Getting tool definitions for server '{server}'...")
        try:
            definitions = [_definition(tool) for tool in await self._offered(server)]
        except Exception as exc:
            if isinstance(exc, TypeError):
                kind = f"Error: Unknown parameter type for server '{server}': {type(self.server_dict[server])}"
                self._log("error", "ToolManager | Unknown Parameter Type", kind)
            message = f"Error: Unable to connect or get tools from server '{server}': {exc}"
            self._log("error", "ToolManager | Connection Error", message)
            return [{"error": f"{self.profile.definitions_error}{exc}"}]
        message = f"Successfully obtained {len(definitions)} tool definitions from server '{server}'."
        self._log("info", "ToolManager | Tool Definitions Success", message)
        return definitions

    async def _offered(self, server: str) -> list[ToolInfo]:
        """The server's tools but for those on the blacklist."""
        offered = []
        for tool in await self._servers.tools(server):
            if (server, tool.name) in self.tool_blacklist:
                message = f"Tool '{tool.name}' in server '{server}' is blacklisted, skipping."
                self._log("info", "ToolManager | Tool Blacklisted", message)
            else:
                offered.append(tool)
        return offered

    # --- calls ------------------------------------------------------------------------------------------------------

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Any) -> Json:
        """Call a tool. Return ``{"server_name", "tool_name"}`` and either `result` (a str) or `error` (a str).

        What a tool itself has to say against a call is a result. Raises only for cancellation, NoHub, and with `strict`
        for a call that takes longer than the profile allows.
        """
        await self._require_hub()
        if server_name not in self.server_dict:
            return await self._not_found(server_name, tool_name, arguments)
        start = f"Connecting to server '{server_name}' to call tool '{tool_name}'"
        self._log("info", "ToolManager | Tool Call Start", start, {"arguments": arguments})
        try:
            text = await self._call(server_name, tool_name, arguments)
        except Exception as exc:
            if self._strict and isinstance(exc, CallTimeout):
                raise TimeoutError(str(exc)) from exc
            return await self._failed(server_name, tool_name, arguments, exc)
        if server_name != PLAYWRIGHT:
            message = f"Tool '{tool_name}' (server: '{server_name}') called successfully."
            self._log("info", "ToolManager | Tool Call Success", message)
        if self.profile.corrects_servers and "Unknown tool:" in text:
            others = await self._find_servers_with_tool(tool_name)
            if len(others) == 1 and others[0] != server_name:
                return await self.execute_tool_call(others[0], tool_name, arguments)
        return _answer(server_name, tool_name, result=text)

    async def _call(self, server: str, tool: str, arguments: Any) -> str:
        if self._enforces_blacklist and (server, tool) in self.tool_blacklist:
            raise ConfigError(f"Tool '{tool}' in server '{server}' is blacklisted")
        if arguments is not None and not isinstance(arguments, Mapping):
            raise BadArguments(f"arguments must be an object, not {type(arguments).__name__}")
        given = arguments or {}
        if self._should_block_hf_scraping(tool, given):
            return HF_REFUSAL
        result = await self._servers.call(server, tool, given)
        return text_of(result, server, tool, self.profile, legacy_errors=self._legacy_errors)

    async def _failed(self, server: str, tool: str, arguments: Any, exc: Exception) -> Json:
        failure = failure_of(exc)
        if server == PLAYWRIGHT:
            return _answer(server, tool, error=Failure(failure.message, was_reached=False).text)
        if failure.was_reached:
            self._log("error", "ToolManager | Tool Execution Error", f"Tool execution error: {failure.message}")
            return _answer(server, tool, error=failure.text)
        message = f"Error: Failed to call tool '{tool}' (server: '{server}'): {failure.message}"
        self._log("error", "ToolManager | Tool Call Failed", message)
        if tool in self.profile.scrape_tools and has_fallback(arguments, failure.message):
            text = await self._fall_back(arguments["url"])
            if text is not None:
                return _answer(server, tool, result=text)
        return _answer(server, tool, error=failure.text)

    async def _fall_back(self, url: str) -> str | None:
        self._log("info", "ToolManager | Fallback Attempt", "Attempting fallback using MarkItDown...")
        try:
            text = await read_with_markitdown(url)
        except Exception as exc:
            self._log("error", "ToolManager | Fallback Failed", f"Fallback also failed: {exc}")
            return None
        self._log("info", "ToolManager | Fallback Success", "MarkItDown fallback successful")
        return text

    # --- wrong server names -----------------------------------------------------------------------------------------

    async def _not_found(self, server: str, tool: str, arguments: Any) -> Json:
        message = f"Error: Attempting to call server '{server}' not found"
        self._log("error", "ToolManager | Server Not Found", message)
        error = f"Server '{server}' not found."
        if not self.profile.corrects_servers:
            return _answer(server, tool, error=error)
        owners = await self._find_servers_with_tool(tool)
        if len(owners) == 1:
            return await self._corrected(server, owners[0], tool, arguments)
        if owners:
            hint = f"However, found tool '{tool}' in these servers: {', '.join(owners)}. Use one of them instead."
        else:
            hint = "The server_name and tool_name may have been mixed up; check both against the system prompt."
        return _answer(server, tool, error=f"{error} {hint}")

    async def _corrected(self, server: str, owner: str, tool: str, arguments: Any) -> Json:
        answer = await self.execute_tool_call(owner, tool, arguments)
        reason = f"Server '{server}' not found, but tool '{tool}' was found only in server '{owner}'"
        if "error" in answer:
            answer["error"] = f"[Auto-corrected: {reason}, but using '{owner}' failed too] {answer['error']}"
        else:
            note = f"[Auto-corrected: {reason}, so automatically used '{owner}' instead] "
            answer["result"] = note + answer["result"]
        return answer

    async def _find_servers_with_tool(self, tool_name: str) -> list[str]:
        servers = await self._servers.having(tool_name)
        return [server for server in servers if (server, tool_name) not in self.tool_blacklist]

    # --- several calls ----------------------------------------------------------------------------------------------

    async def execute_tool_calls_batch(
        self, tool_calls: Sequence[Json], max_tool_calls: int = 10
    ) -> tuple[Results, bool]:
        """Run calls (``{"id", "server_name", "tool_name", "arguments"}``), independent ones at the same time.

        Return (id, result) in the order of the calls, and whether there were more than `max_tool_calls`, which are
        left out.
        """
        chosen = tool_calls[:max_tool_calls]
        return await execute_in_groups(chosen, self.execute_tool_call), len(tool_calls) > max_tool_calls

    def format_tool_results(self, results: Results) -> list[tuple[Any, Json]]:
        """Turn results into text blocks for the next message."""
        return [(call_id, formatted(result)) for call_id, result in results]


def _definition(tool: ToolInfo) -> Json:
    return {"name": tool.name, "description": tool.description, "schema": tool.input_schema}


def _answer(server: str, tool: str, **outcome: str) -> Json:
    return {"server_name": server, "tool_name": tool, **outcome}
