"""Why a search gave no answer. An answer without hits is no error."""

from __future__ import annotations

from toolhub.errors import ToolhubError
from toolhub.overload import OverloadSignal


class SearchFailed(ToolhubError):
    """The backend gave no answer; another one may. The text names it, the reason and, if known, the way out.

    pressure: the reason is that it has too many requests.
    """

    def __init__(self, message: str, *, pressure: OverloadSignal | None = None) -> None:
        super().__init__(message)
        self.pressure = pressure


class ServiceRefused(SearchFailed):
    """The service was reached and said no, in its own words; asking it again would not help."""
