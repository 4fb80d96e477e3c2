"""Which queries an agent has asked already: asking again teaches nothing, and the model is made to think of another."""

from __future__ import annotations

from toolhub_agent.model import Json, ToolCall

# The arguments that make a query, by tool. Servers of one tool name them differently.
_QUERY_ARGUMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "search_and_browse": (("subtask",),),
    "google_search": (("q",),),
    "sogou_search": (("Query", "q"),),
    "scrape_website": (("url",),),
    "scrape_and_extract_info": (("url",), ("info_to_extract",)),
}
# A search for the second page is another query, though the words are the same.
_VARIANTS = ("page", "num", "tbs", "location")


def query_of(call: ToolCall) -> str | None:
    """What a call asks, as one text; None for tools whose calls may be repeated."""
    parts = _QUERY_ARGUMENTS.get(call.tool)
    if parts is None:
        return None
    asked = [_first(call.arguments, names) for names in parts]
    variants = [f"{name}={call.arguments[name]}" for name in _VARIANTS if name in call.arguments]
    return "_".join([call.tool, *asked, *variants])


def _first(arguments: Json, names: tuple[str, ...]) -> str:
    return next((str(arguments[name]) for name in names if name in arguments), "")


class AskedQueries:
    """Queries whose results stand in the history. One per agent and task."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def __contains__(self, call: ToolCall) -> bool:
        return query_of(call) in self._asked

    def note(self, call: ToolCall) -> None:
        """Call this for results that stay, or an empty result would make the next try a duplicate."""
        if (query := query_of(call)) is not None:
            self._asked.add(query)
