"""What the web answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. url: the one that answered, after redirects; headers: names in lower case."""

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False
    """Whether the body went on beyond `max_bytes`."""

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """Raises ValueError."""
        return json.loads(self.body)
