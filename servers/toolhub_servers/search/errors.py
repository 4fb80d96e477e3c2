"""Why a search gave no answer. An answer without hits is no error."""

from __future__ import annotations

from toolhub.errors import ToolhubError


class SearchFailed(ToolhubError):
    """The backend gave no answer; another one may. The text names it, the reason and, if known, the way out."""


class ServiceRefused(SearchFailed):
    """The service was reached and said no, in its own words; asking it again would not help."""
