"""What a model is shown: an append-only history, what is left out of it, what fits, and what a cache could reuse."""

from toolhub_agent.context.budget import ContextBudget
from toolhub_agent.context.history import History, Journal
from toolhub_agent.context.keep import OMITTED, KeepResults, View
from toolhub_agent.context.prefix import PrefixReport, PrefixTurn
from toolhub_agent.context.serial import dumps

__all__ = [
    "OMITTED",
    "ContextBudget",
    "History",
    "Journal",
    "KeepResults",
    "PrefixReport",
    "PrefixTurn",
    "View",
    "dumps",
]
