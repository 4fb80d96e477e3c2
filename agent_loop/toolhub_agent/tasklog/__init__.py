"""The record of a task: an append-only log to resume from, and MiroFlow's task log, which is made from it."""

from toolhub_agent.tasklog.log import ConversationLog, TaskLog
from toolhub_agent.tasklog.miroflow import miroflow_document, write_miroflow
from toolhub_agent.tasklog.reader import (
    MAIN,
    LoggedConversation,
    LogUnreadable,
    Step,
    TaskRecord,
    logs_of_task,
    read_log,
)

__all__ = [
    "MAIN",
    "ConversationLog",
    "LogUnreadable",
    "LoggedConversation",
    "Step",
    "TaskLog",
    "TaskRecord",
    "logs_of_task",
    "miroflow_document",
    "read_log",
    "write_miroflow",
]
