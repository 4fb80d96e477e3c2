"""In what the three published variants of `ToolManager` differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from toolhub.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Profile:
    """One variant. `timeout` is seconds per call; an empty text for a `..._note` returns "" as it is."""

    name: str
    timeout: float
    definitions_error: str = "Unable to fetch tools: "
    scrape_tools: tuple[str, ...] = ("scrape", "scrape_website")
    """Tools that may not read Hugging Face datasets, and for which there is a fallback."""
    no_content_note: str = ""
    empty_text_note: str = ""
    empty_browser_note: str = ""
    corrects_servers: bool = False
    """Whether a call to a server that does not exist goes to the one server that has the tool."""
    has_task_id: bool = False
    """Whether stdio servers get the task's id in their environment."""
    logs_to_module: bool = False


_MIROTHINKER = Profile("mirothinker", timeout=1200)
_MIROFLOW_TOOL = Profile(
    "miroflow-tool",
    timeout=600,
    definitions_error="Failed to fetch tools: ",
    scrape_tools=("scrape",),
    no_content_note="Tool '{tool}' completed but returned no content - this may be expected or indicate an issue",
    empty_text_note="Tool '{tool}' completed but returned empty text - this may be expected or indicate an issue",
    empty_browser_note=(
        "Tool '{tool}' returned empty result - this may be expected (e.g., delete operations) "
        "or indicate an issue with tool execution"
    ),
    logs_to_module=True,
)
_MIROFLOW = replace(_MIROFLOW_TOOL, name="miroflow", timeout=900, corrects_servers=True, has_task_id=True)

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {profile.name: profile for profile in (_MIROTHINKER, _MIROFLOW, _MIROFLOW_TOOL)}
)


def profile_named(profile: str | Profile) -> Profile:
    """Return the profile. Raises ConfigError."""
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise ConfigError(f"no profile named {profile!r}; there are {', '.join(PROFILES)}")
    return PROFILES[profile]
