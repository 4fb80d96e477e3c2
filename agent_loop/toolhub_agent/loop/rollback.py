"""When a turn is taken back and sampled again, without a word to the model about it.

The rules are MiroFlow's. Two of its faults are not: a backend's error is no empty result (it would cost up to four
more turns per failed search), and a turn is taken back for a query only if that query's result is in the history.
"""

from __future__ import annotations

import json

from toolhub_agent.model import ToolOutcome

_REFUSALS = ("time constraint", "I’m sorry, but I can’t", "I'm sorry, I cannot solve")
_ERROR_PREFIXES = ("Unknown tool:", "Error executing tool")
_SEARCHES = frozenset({"google_search"})


class Rollbacks:
    """Counts turns taken back in a row: `limit - 1` of them are, the next one stands."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row = 0
        self.total = 0

    def __repr__(self) -> str:
        return f"<Rollbacks {self._in_a_row} in a row, {self.total} in all>"

    @property
    def is_allowed(self) -> bool:
        return self._in_a_row < self._limit - 1

    def note_rollback(self) -> None:
        self._in_a_row += 1
        self.total += 1

    def note_success(self) -> None:
        self._in_a_row = 0


def is_refusal(text: str) -> bool:
    """A turn without a call that says why it makes none."""
    return any(words in text for words in _REFUSALS)


def reason_to_retry(outcome: ToolOutcome) -> str | None:
    """Why a result is not worth keeping: the call was wrong, or a search found nothing. None: keep it."""
    if outcome.text.startswith(_ERROR_PREFIXES):
        return outcome.text.splitlines()[0][:200]
    if outcome.call.tool in _SEARCHES and _is_empty_search(outcome.text):
        return "the search found nothing"
    return None


def _is_empty_search(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    if not isinstance(found, dict) or found.get("error") or found.get("success") is False:
        return False
    return not found.get("organic")
