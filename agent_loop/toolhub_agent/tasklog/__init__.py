"""What a task leaves behind: an append-only log to resume from, MiroFlow's task log made of it, and stream events."""

from toolhub_agent.events import EventSink, StreamEvents
from toolhub_agent.tasklog.log import ConversationLog, TaskLog
from toolhub_agent.tasklog.miroflow import miroflow_document, write_miroflow
from toolhub_agent.tasklog.reader import MAIN, LoggedConversation, LogUnreadable, Step, TaskRecord, read_log

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
