"""What the server's operator sets, as environment variables: a scheduler class gets no options of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_SHARE = "TOOLHUB_PIN_MAX_SHARE"
MAX_TTL_S = "TOOLHUB_PIN_MAX_TTL_S"


@dataclass(frozen=True, slots=True)
class PinSettings:
    """max_share: of the KV cache's blocks, 0 to 1. max_ttl: seconds; longer pins are cut to it."""

    max_share: float = 0.5
    max_ttl: float = 600.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> PinSettings:
        """Raises ValueError, naming the variable, for what is no number in its range."""
        return cls(
            max_share=_number(environment, MAX_SHARE, cls().max_share, most=1.0),
            max_ttl=_number(environment, MAX_TTL_S, cls().max_ttl, most=86_400.0),
        )


def _number(environment: Mapping[str, str], name: str, default: float, *, most: float) -> float:
    text = environment.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:  # nan is neither
        raise ValueError(f"{name} must be a number from 0 to {most:g}, not {text!r}")
    return value
