"""What became of a call, in the words that MiroFlow's agent loops look for.

A loop takes back a turn when a result begins with `Unknown tool:` or `Error executing tool`. Server frameworks word
these failures differently, so they are brought to that form; and a failed call is either `Tool call failed` (the server
could not be reached) or `Tool execution failed` (it was, but gave no answer).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolhub.client import HubLost
from toolhub.errors import CallError, CallTimeout, ProtocolViolation, SessionLost, TaskClosed
from toolhub.miroflow.params import PLAYWRIGHT
from toolhub.miroflow.profile import Profile
from toolhub.model import Json, Result

HF_REFUSAL = (
    "You are trying to scrape a Hugging Face dataset for answers, please do not use the scrape tool for this purpose."
)
UNKNOWN_OUTCOME = "OUTCOME UNKNOWN, the call may or may not have been executed: "
# The hub keeps a server's JSON-RPC error here when it hands it on as a result.
_JSONRPC_ERROR = "toolhub/jsonrpc_error"
_INVALID_PARAMS = -32602
_CALLING = re.compile(r"Error (?:calling|executing) tool\s+['\"]?(?P<tool>[^\s'\":]+)['\"]?(?P<rest>:.*|)\Z", re.DOTALL)
_CODE = re.compile(r"\AMCP error -?\d+: ")


class RefusedByServer(Exception):
    """The server answered with a protocol error instead of a result."""


class BadArguments(Exception):
    """The model gave something that is no set of arguments."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A call without a result. `was_reached` tells whether the server got as far as working on it."""

    message: str
    was_reached: bool

    @property
    def text(self) -> str:
        return f"Tool {'execution' if self.was_reached else 'call'} failed: {self.message}"


def failure_of(exc: Exception) -> Failure:
    """Say what went wrong, and that the outcome is unknown whenever it is."""
    message = str(exc) or repr(exc)
    if isinstance(exc, HubLost) or (isinstance(exc, CallError | TaskClosed) and exc.sent == "maybe"):
        return Failure(UNKNOWN_OUTCOME + message, was_reached=True)
    reached = (CallTimeout, SessionLost, ProtocolViolation, RefusedByServer, BadArguments)
    return Failure(message, was_reached=isinstance(exc, reached))


def text_of(result: Result, server: str, tool: str, profile: Profile, *, legacy_errors: bool) -> str:
    """Return what the model is to read: the last text block, or for the browser the first.

    Raises RefusedByServer for a protocol error that says nothing about the call itself.
    """
    text = _chosen_text(result, server, tool, profile)
    if not result.is_error:
        return text
    refusal = _refusal(result)
    if refusal is not None and (legacy_errors or refusal.get("code") != _INVALID_PARAMS):
        raise RefusedByServer(str(refusal.get("message", text)))
    return text if legacy_errors else normalised(tool, text)


def _chosen_text(result: Result, server: str, tool: str, profile: Profile) -> str:
    texts = [block["text"] for block in result.content if isinstance(block.get("text"), str)]
    is_browser = server == PLAYWRIGHT
    text = (texts[0] if is_browser else texts[-1]) if texts else ""
    if text.strip() or (text and is_browser):
        return text
    if is_browser:
        note = profile.empty_browser_note
    else:
        note = profile.empty_text_note if result.content else profile.no_content_note
    return note.format(tool=tool) or text


def _refusal(result: Result) -> Json | None:
    meta = result.raw.get("_meta")
    error = meta.get(_JSONRPC_ERROR) if isinstance(meta, dict) else None
    return error if isinstance(error, dict) else None


def normalised(tool: str, text: str) -> str:
    """Bring a tool's error to `Unknown tool: <tool>` or `Error executing tool <tool>: <message>`."""
    message = _CODE.sub("", text)
    if _is_unknown_tool(tool, message):
        return f"Unknown tool: {tool}"
    if match := _CALLING.match(message):
        return f"Error executing tool {tool}{match['rest']}"
    return f"Error executing tool {tool}: {message}"


def _is_unknown_tool(tool: str, message: str) -> bool:
    named = rf"['\"]?{re.escape(tool)}['\"]?"
    return bool(re.match(rf"Unknown tool:? {named}\s*\Z|Tool {named} not found\.?\s*\Z", message))
