"""What one check came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "weaker", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """status: `weaker` costs an agent time or tokens, `note` is only good to know. advice: what to do about it."""

    check: str
    status: Status
    detail: str
    advice: str = ""
