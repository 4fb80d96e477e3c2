"""What a task leaves behind: an append-only log to resume from, MiroFlow's task log made of it, and stream events."""

from toolhub_agent.events import EventSink, StreamEvents
from toolhub_agent.tasklog.log import ConversationLog, TaskLog
from toolhub_agent.tasklog.miroflow import miroflow_document, write_miroflow
from toolhub_agent.tasklog.names import MAIN
from toolhub_agent.tasklog.replay import Conversation, LogUnreadable, Replay, read_log
from toolhub_agent.tasklog.steps import Step

__all__ = [
    "MAIN",
    "Conversation",
    "ConversationLog",
    "EventSink",
    "LogUnreadable",
    "Replay",
    "Step",
    "StreamEvents",
    "TaskLog",
    "miroflow_document",
    "read_log",
    "write_miroflow",
]
