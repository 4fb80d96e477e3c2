"""What all tasks of one command use: model servers, hints, and a hub of its own or one that runs elsewhere."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from toolhub import Config, Hub, connect
from toolhub.config import AgentSettings, LlmSettings, parse_config
from toolhub.errors import ConfigError
from toolhub_agent.agent import (
    Agent,
    catalog_for,
    definitions_for,
    open_model_servers,
    sub_agent_definitions,
    system_prompt_for,
    with_api_version,
)
from toolhub_agent.events import AgentCallbacks
from toolhub_agent.kv_hints.hinter import Hinter
from toolhub_agent.llm import LlmClient
from toolhub_agent.llm.endpoint_pool import EndpointPool, open_endpoint_pool
from toolhub_agent.llm.errors import AttemptFailed
from toolhub_agent.prompts import MAIN_OBJECTIVE
from toolhub_agent.tools import HubTask, HubTools
from toolhub_agent.types import Json

# For the check before a run. A server that is up connects and lists its models in milliseconds.
_CONNECT_S = 4.0
_ANSWER_S = 5.0

OpenTask = Callable[[str, str], AbstractAsyncContextManager[HubTask]]
"""Called with the task's id and the run's name. The tools live while the block runs."""


@dataclass(frozen=True)
class RunSession:
    """What all tasks of one command use."""

    llm: LlmClient
    hints: Hinter
    settings: AgentSettings
    open_task: OpenTask
    secrets: frozenset[str]
    """What no log may contain: all secrets of the config, of the model servers and of the hub in use."""

    def agent(self, tools: HubTask, callbacks: AgentCallbacks | None = None) -> Agent:
        return Agent(llm=self.llm, tools=tools, settings=self.settings, hints=self.hints, callbacks=callbacks)

    def fingerprint(self) -> str:
        """A hash of the settings that influence a task. A task is not resumed under another fingerprint."""
        return hashlib.blake2b(self.settings.model_dump_json().encode(), digest_size=8).hexdigest()

    async def prefetch_shared_prefix(self) -> bool:
        """Have the common prefix of all tasks computed once. Return whether any endpoint did it."""
        async with self.open_task("prefetch", "") as task:
            definitions = await HubTools(task).get_all_tool_definitions()
        messages, body = shared_prefix(definitions, self.settings, datetime.date.today())
        usages = await self.llm.prefetch_prefix(messages, body)
        return any(usage is not None for usage in usages.values())


def shared_prefix(
    definitions: list[Json], settings: AgentSettings, today: datetime.date
) -> tuple[list[Json], Mapping[str, Any]]:
    """The messages and body fields that every main agent's first request begins with."""
    own = definitions_for(definitions, settings.servers)
    catalog = catalog_for([*own, *sub_agent_definitions(settings.sub_agents)], settings)
    system = system_prompt_for(catalog, settings, settings.system_prompt or MAIN_OBJECTIVE, today)
    body = {"tools": catalog.native_tools(), "tool_choice": "auto"} if settings.protocol == "native" else {}
    return [{"role": "system", "content": system}], body


@asynccontextmanager
async def open_session(
    config: Config, llm: LlmSettings, *, hub: str | None = None, token: str | None = None
) -> AsyncIterator[RunSession]:
    """Open everything. Nothing is sent to a model server yet. hub: the address of a running one; None starts one."""
    async with AsyncExitStack() as stack:
        client, hints = await stack.enter_async_context(open_model_servers(llm))
        if hub is not None:
            open_task = _task_opener(await stack.enter_async_context(connect(hub, token=token)))
        else:
            local = await stack.enter_async_context(Hub(config))
            local.observers.append(hints.durations)
            open_task = _task_opener(local)
        secrets = config.secrets.union(llm.secrets, [token] if token else [])
        yield RunSession(client, hints, config.agent, open_task, secrets)


async def check_model_servers(llm: LlmSettings) -> list[str]:
    """Return a sentence for each endpoint that does not answer; it takes at most 5 s.

    Raises ConfigError if a connection to all of them fails. One that connects and is silent may only be busy.
    """
    dead: dict[str, str] = {}
    silent: list[str] = []
    bounded = llm.model_copy(update={"connect_timeout_s": min(llm.connect_timeout_s, _CONNECT_S)})

    async def ask(pool: EndpointPool, url: str) -> None:
        with anyio.move_on_after(_ANSWER_S) as scope:
            try:
                await pool.transport(url).models()
            except AttemptFailed as exc:
                if exc.status is None and exc.is_endpoint_fault:
                    dead[url] = str(exc)
        if scope.cancelled_caught:
            silent.append(f"the model server at {url} did not answer within {_ANSWER_S:g} s; it may be busy")

    async with open_endpoint_pool(bounded) as pool, anyio.create_task_group() as asking:
        for url in llm.endpoints:
            asking.start_soon(ask, pool, url)
    found = [f"no model server answers at {url} ({reason})" for url, reason in dead.items()]
    if len(dead) == len(set(llm.endpoints)):
        raise ConfigError(
            f"{'; '.join(found)}; start it (`toolhub llm-command` prints how), or correct --llm or `llm: endpoints:`"
        )
    return found + silent


def _task_opener(hub: Any) -> OpenTask:
    """hub: a `Hub` of this process, or one that `connect()` reached."""
    return lambda task_id, run: hub.task(task_id, run=run)


def llm_settings(config: Config, url: str | None, model: str | None) -> LlmSettings:
    """The config's settings with the command's address and model. Raises ConfigError if no model server is named."""
    if url is None and config.llm is None:
        raise ConfigError(
            "no model server: name one with --llm http://host:8000/v1, or in the config under `llm: endpoints:`. "
            "Without one at hand, `toolhub demo --replay` shows what a task looks like"
        )
    section: dict[str, Any] = {} if config.llm is None else config.llm.model_dump(exclude_unset=True)
    if config.llm is not None and config.llm.api_key is not None:
        section["api_key"] = config.llm.api_key.get_secret_value()
    if url is not None:
        section["endpoints"] = [with_api_version(url)]
    if model is not None:
        section["model"] = model
    settings = parse_config({"llm": section}, path="--llm", environ={}).llm
    assert settings is not None
    return settings
