"""What a search backend gets and returns, and how it fails. The names are those of Serper, which models know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from toolhub.errors import ToolhubError
from toolhub.overload import OverloadSignal

SPANS = {
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "m": timedelta(days=31),
    "y": timedelta(days=365),
}


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Query:
    """One search. tbs: Google's time filter, such as `qdr:w`; a backend ignores filters that it does not know."""

    q: str
    gl: str = "us"
    hl: str = "en"
    location: str | None = None
    num: int = 10
    tbs: str | None = None
    page: int | None = None
    autocorrect: bool | None = None

    @property
    def count(self) -> int:
        """`num`, but at least one, for backends that need that."""
        return max(self.num, 1)

    @property
    def skipped(self) -> int:
        """How many hits are on the pages before the wanted one."""
        return (max(self.page or 1, 1) - 1) * self.count

    @property
    def past(self) -> str | None:
        """h, d, w, m or y if `tbs` means the past hour, day, week, month or year."""
        head, _, unit = (self.tbs or "").partition(":")
        return unit[0] if head == "qdr" and unit[:1] in tuple("hdwmy") else None

    def since(self, now: datetime) -> datetime | None:
        """Return when the time span of `tbs` began."""
        return now - SPANS[self.past] if self.past else None

    def parameters(self, engine: str) -> dict[str, Any]:
        """Return the query as Serper repeats it in its answers, for backends that do not repeat it."""
        asked = {"q": self.q, "gl": self.gl, "hl": self.hl, "type": "search", "num": self.num, "page": self.page}
        return {name: value for name, value in asked.items() if value is not None} | {"engine": engine}


@dataclass(frozen=True, slots=True)
class Hit:
    """One page that was found. position: from 1. item: everything that the backend says about it, if that is more."""

    title: str
    link: str
    snippet: str = ""
    date: str | None = None
    position: int = 0
    item: Mapping[str, Any] | None = None

    def as_organic(self) -> dict[str, Any]:
        """The hit as an element of Serper's `organic`."""
        if self.item is not None:
            return dict(self.item)
        date = {"date": self.date} if self.date else {}
        return {"title": self.title, "link": self.link, "snippet": self.snippet, **date, "position": self.position}


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a backend, the best first.

    parameters: the query as the backend understood it. answer: the backend's other blocks, in its order.
    """

    backend: str
    hits: tuple[Hit, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    answer: Mapping[str, Any] = field(default_factory=dict)

    def organic(self) -> list[dict[str, Any]]:
        return [hit.as_organic() for hit in self.hits]

    def as_serper(self) -> dict[str, Any]:
        """The whole answer as Serper gives it."""
        return {"searchParameters": dict(self.parameters), **self.answer, "organic": self.organic()}


class SearchFailed(ToolhubError):
    """The backend gave no answer; another one may. The text names it, the reason and, if known, what to do.

    overload: set if the reason is that it has too many requests.
    """

    def __init__(self, message: str, *, overload: OverloadSignal | None = None) -> None:
        super().__init__(message)
        self.overload = overload


class ServiceRefused(SearchFailed):
    """The service answered and refused, in its own words. Asking it again would not help."""
