"""The steps that MiroFlow's log viewers know, written to the log of the task at hand.

A manager may be shared by several tasks. `set_task_log` therefore binds the log for the current context (an asyncio
task or a thread) and what it starts; a context without one of its own uses the log that was set last.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR, "debug": logging.DEBUG}
_NONE: Mapping[object, Any] = MappingProxyType({})
_bound: ContextVar[Mapping[object, Any]] = ContextVar("toolhub_miroflow_task_logs", default=_NONE)

logger = logging.getLogger("toolhub.miroflow")


class StepLog:
    """The log of one manager. to_module: without a task's log, write to the module's logger as MiroFlow does."""

    def __init__(self, *, to_module: bool) -> None:
        self._key = object()  # not this log's id: a later one might get the same
        self._last: Any = None
        self._to_module = to_module

    @property
    def current(self) -> Any:
        """The log bound in this context, else the one set last, else None."""
        return _bound.get().get(self._key, self._last)

    def bind(self, task_log: Any) -> None:
        self._last = task_log
        _bound.set({**_bound.get(), self._key: task_log})

    def write(self, level: str, step_name: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        """Write one step. A log that fails never fails a call."""
        task_log = self.current
        if not task_log:
            number = _LEVELS.get(level, logging.INFO) if self._to_module else logging.DEBUG
            logger.log(number, "%s", message)
            return
        try:
            task_log.log_step(level, step_name, message, metadata)
        except Exception as exc:
            logger.debug("the task's log refused %r: %r", step_name, exc)
