"""Everything that tasks of one command share: model servers, hints, and a hub of its own or one that runs elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from toolhub import Config, Hub, connect
from toolhub.config import AgentSettings, LlmSettings, parse_config
from toolhub.errors import ConfigError
from toolhub_agent.agent import AgentDeps, catalog_for, definitions_for, sub_agent_definitions, system_prompt_for
from toolhub_agent.events import AgentCallbacks, NoCallbacks
from toolhub_agent.kv_hints.hinter import Hinter, open_hints
from toolhub_agent.llm import LlmClient, open_llm
from toolhub_agent.llm.transport import session_headers
from toolhub_agent.prompts import MAIN_OBJECTIVE
from toolhub_agent.tools import HubTask, HubTools
from toolhub_agent.types import Json

OpenTask = Callable[[str, str], AbstractAsyncContextManager[HubTask]]
"""Takes the task's id and the run's name; the tools live as long as the block."""


@dataclass(frozen=True)
class RunSession:
    """What a command's tasks share."""

    llm: LlmClient
    hints: Hinter
    settings: AgentSettings
    open_task: OpenTask
    secrets: frozenset[str]
    """What no log may hold: every secret of the config, and those of the model servers and the hub in use."""
    """What no log may hold: every secret of the config, and those of the model servers and the hub in use."""

    def surroundings(self, viewer: AgentCallbacks | None = None) -> AgentDeps:
        return AgentDeps(self.llm, self.settings, self.hints, viewer or NoCallbacks())

    def fingerprint(self) -> str:
        """Of what decides how a task goes: one that was begun under another is begun anew."""
        return hashlib.blake2b(self.settings.model_dump_json().encode(), digest_size=8).hexdigest()

    async def warm(self) -> bool:
        """Have the prefix that all tasks begin with computed once; returns whether any endpoint did."""
        around = self.surroundings()
        async with self.open_task("warm-up", "") as task:
            definitions = await HubTools(task).get_all_tool_definitions()
        messages, body = shared_prefix(definitions, self.settings, around)
        usages = await self.llm.warm_prefix(messages, body)
        return any(usage is not None for usage in usages.values())


def shared_prefix(
    definitions: list[Json], settings: AgentSettings, around: AgentDeps
) -> tuple[list[Json], Mapping[str, Any]]:
    """The messages and body fields that every main agent's first request begins with."""
    own = definitions_for(definitions, settings.servers)
    catalog = catalog_for([*own, *sub_agent_definitions(settings.sub_agents)], settings)
    system = system_prompt_for(catalog, settings, settings.system_prompt or MAIN_OBJECTIVE, around.today())
    body = {"tools": catalog.native_tools(), "tool_choice": "auto"} if settings.protocol == "native" else {}
    return [{"role": "system", "content": system}], body


@asynccontextmanager
async def open_session(
    config: Config, llm: LlmSettings, *, hub: str | None = None, token: str | None = None
) -> AsyncIterator[RunSession]:
    """Open everything; nothing is sent to a model server yet. hub: the address of one that runs already."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_llm(llm))
        hints = await stack.enter_async_context(
            open_hints(
                llm.hints,
                engine=llm.engine,
                http=client.raw,
                headers_of=session_headers,
                load_of=client.fleet.load,
            )
        )
        if hub is not None:
            open_task = _task_opener(await stack.enter_async_context(connect(hub, token=token)))
        else:
            local = await stack.enter_async_context(Hub(config))
            local.observers.append(hints.durations)
            open_task = _task_opener(local)
        secrets = config.secrets.union(llm.secrets, [token] if token else [])
        yield RunSession(client, hints, config.agent, open_task, secrets)


def _task_opener(hub: Any) -> OpenTask:
    """hub: a `Hub` of this process, or one that `connect()` reaches."""
    return lambda task_id, run: hub.task(task_id, run=run)


def llm_settings(config: Config, url: str | None, model: str | None) -> LlmSettings:
    """The config's, with the command's address and model in their place. Raises ConfigError if there is neither."""
    if url is None and config.llm is None:
        raise ConfigError(
            "no model server: name one with --llm http://host:8000/v1, or in the config under `llm: endpoints:`. "
            "Without one at hand, `toolhub demo --replay` shows what a task looks like"
        )
    section: dict[str, Any] = {} if config.llm is None else config.llm.model_dump(exclude_unset=True)
    if config.llm is not None and config.llm.api_key is not None:
        section["api_key"] = config.llm.api_key.get_secret_value()
    if url is not None:
        section["endpoints"] = [with_version(url)]
    if model is not None:
        section["model"] = model
    settings = parse_config({"llm": section}, path="--llm", environ={}).llm
    assert settings is not None
    return settings


def with_version(url: str) -> str:
    """`http://host:8000` is taken for `http://host:8000/v1`, where every engine has its API."""
    return url.rstrip("/") + "/v1" if not urlsplit(url).path.strip("/") else url
