"""How an answer says that the server wants fewer calls."""

from __future__ import annotations

from dataclasses import dataclass

from toolhub.model import Json

META = "toolhub/retry_after"


@dataclass(frozen=True, slots=True)
class Pressure:
    """retry_after: seconds for which the server wants no call; None when it did not say."""

    retry_after: float | None = None


def pressure_of(result: Json) -> Pressure | None:
    """What a wire result says about the load of its server; None when it says nothing."""
    meta = result.get("_meta")
    if not isinstance(meta, dict) or META not in meta:
        return None
    return Pressure()
