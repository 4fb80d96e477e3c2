"""Research tasks of searches and visits: which results an agent opens, and how long it writes before each call.

*As published*: every search of the two tasks that MiroFlow's repository has with their whole histories
(`debug_message_history.json` at 87ee9c6, `task_result.json` at c441dfe), drawn at random: the places of the results
that were opened, the characters that the model wrote before each call, and the lengths of the pages as the tool gave
them.

*Few visits*: shaped like BrowseComp, where most searches lead to no visit. The numbers are assumed: 0.6 visits a search
and 75 tokens a turn as in `benchmarks.model.traces`, and the place of a visit among ten results falls off slowly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.model.traces import TOOLS, Spread

# Seconds until a page is there: median 1.2 s, p95 6 s. That is the wanted load of this benchmark, and the same order as
# SpecCache's measurements, in which the web takes up to 53.7 % of a task (arXiv 2510.16276).
PAGE_S = Spread(1.2, 0.978, 30.0)
SEARCH_S = TOOLS["search"].seconds
# Characters of a token, and seconds of one: 40 tokens a second for one of many streams of an engine (assumed).
CHARS_PER_TOKEN = 4
TOKEN_S = 0.025
# Until the first token of a turn (assumed: most of its prompt is in the engine's cache).
FIRST_TOKEN_S = 0.3
# What the model writes after the URL for a tool that extracts: 150 characters of what to look for (assumed).
INFO_CHARS = 150
# Of the model that extracts (assumed).
EXTRACT_S = 2.0


@dataclass(frozen=True)
class Visit:
    """place: of the result that is opened, from 0. wrote: characters before the call."""

    place: int
    wrote: int
    page_chars: int


@dataclass(frozen=True)
class SearchAndVisits:
    """One search and the visits that follow it, a turn each. wrote: characters before the search's call."""

    results: int
    wrote: int
    visits: tuple[Visit, ...]


PUBLISHED = (
    SearchAndVisits(
        10, 1733, (Visit(0, 1344, 101_566), Visit(1, 1291, 102_348), Visit(2, 1499, 44_977), Visit(4, 1781, 104_347))
    ),
    SearchAndVisits(1, 1534, (Visit(0, 1631, 134_617),)),
    SearchAndVisits(5, 110, (Visit(0, 170, 94_076),)),
)  # fmt: skip
_SIZES = tuple(visit.page_chars for episode in PUBLISHED for visit in episode.visits)


@dataclass(frozen=True)
class SitePage:
    """One page of the local site."""

    path: str
    seconds: float
    size: int


@dataclass(frozen=True)
class Search:
    """One search of a task: its own seconds, what it finds, and what the agent opens of that."""

    query: str
    seconds: float
    wrote: int
    found: tuple[SitePage, ...]
    opened: tuple[tuple[SitePage, int], ...]
    """With the characters that are written before."""


def published_task(number: int, searches: int) -> list[Search]:
    """Return a task whose searches are drawn from the published ones."""
    pick = random.Random(number)
    return [_search(f"p{number}-{place}", pick.choice(PUBLISHED), pick) for place in range(searches)]


def sparse_task(number: int, searches: int) -> list[Search]:
    """Return a task with few visits. The same number always gives the same task."""
    pick = random.Random(number)
    writes = Spread(75 * CHARS_PER_TOKEN, 0.7)
    episodes = []
    for _ in range(searches):
        places = {min(9, int(pick.expovariate(0.35))) for _ in range(pick.random() < 0.6)}
        visits = [Visit(place, round(writes.draw(pick)), pick.choice(_SIZES)) for place in sorted(places)]
        episodes.append(SearchAndVisits(10, round(writes.draw(pick)), tuple(visits)))
    return [_search(f"s{number}-{place}", episode, pick) for place, episode in enumerate(episodes)]


def _search(name: str, episode: SearchAndVisits, pick: random.Random) -> Search:
    sizes = {visit.place: visit.page_chars for visit in episode.visits}
    found = tuple(
        SitePage(f"/{name}/{place}", PAGE_S.draw(pick), sizes.get(place) or pick.choice(_SIZES))
        for place in range(episode.results)
    )
    opened = tuple((found[visit.place], visit.wrote) for visit in episode.visits)
    return Search(name, SEARCH_S.draw(pick), episode.wrote, found, opened)


def writing_s(chars: int) -> float:
    """Seconds in which a model writes so many characters."""
    return chars / CHARS_PER_TOKEN * TOKEN_S
