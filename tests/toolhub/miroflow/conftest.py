"""Fixtures of the tests of the drop-in. All managers of a test run share its private hub."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from miroflow_agents import Make, TaskLog, config, echo_params, tool_params

from toolhub.miroflow import ToolManager


@pytest.fixture(autouse=True)
def no_other_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TOOLHUB_")]:
        monkeypatch.delenv(name)


@pytest.fixture
async def make(anyio_backend: str) -> AsyncIterator[Make]:
    """Makes managers that are closed at the end of the test."""
    async with AsyncExitStack() as managers:
        made: list[ToolManager] = []

        def make_one(*args: Any, **options: Any) -> ToolManager:
            made.append(ToolManager(*args, **options))
            managers.push_async_callback(made[-1].aclose)
            return made[-1]

        yield make_one


@pytest.fixture
def manager(make: Make) -> ToolManager:
    """A manager with the servers `echo` and `tools`."""
    return make([config("echo", echo_params()), config("tools", tool_params())])


@pytest.fixture
def log(manager: ToolManager) -> TaskLog:
    """The log of `manager`, empty."""
    task_log = TaskLog()
    manager.set_task_log(task_log)
    task_log.steps.clear()
    return task_log
