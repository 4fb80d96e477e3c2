"""Options that all search backends share, and the base of each backend's own options. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from toolhub.config.section import Pause, Seconds, Section
from toolhub_servers.web.errors import Forbidden
from toolhub_servers.web.request import authority_of
from toolhub_servers.web.settings import WebSettings

# A search service is asked many small things at once and answers in seconds or not at all.
SEARCH_WEB = {"total_s": 20.0, "per_host": 32, "retries": 2}


def _check_base_url(url: str) -> str:
    try:
        authority_of(url)
    except Forbidden as exc:
        raise ValueError(f"{url!r} is not an http or https URL") from exc
    return url.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_check_base_url)]


class BackendSettings(Section):
    """The options of one backend.

    An option that is null or empty counts as not given: that is what unset variables are.
    """

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if value is not None and value != ""}


class SharedSettings(Section):
    """What holds for all backends of a server."""

    web: WebSettings = Field(default_factory=lambda: WebSettings.model_validate(SEARCH_WEB))
    timeout_s: Seconds = 60
    """For one search over all backends, with their retries."""
    cache_s: Pause = 600
    """The same query is not asked again within this time, whichever task asks; 0: every query is asked."""
