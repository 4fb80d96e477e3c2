"""How results of tools are put to the model; the sentences are MiroFlow's, which models were trained on."""

from __future__ import annotations

from toolhub_agent.context.serial import sendable
from toolhub_agent.model import ToolOutcome

TRUNCATED = "\n... [Result truncated]"


def result_text(outcome: ToolOutcome, *, limit: int) -> str:
    """What the model reads of one call. limit: characters of the tool's own text; the rest is cut with a note."""
    tool, server = outcome.call.tool, outcome.call.server
    text = sendable(_cut(outcome.text, limit))
    if outcome.is_error:
        return f"Tool call to {tool} on {server} failed. Error: {text}"
    if not text:
        return f"Tool call to {tool} on {server} completed, but produced no specific output or result."
    return text


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + TRUNCATED
