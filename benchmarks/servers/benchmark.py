"""What do our servers save? Connections of searches, starts of the MiroThinker servers, memory of browsers."""

from __future__ import annotations

from dataclasses import dataclass, field

import psutil

from benchmarks.common.agent_startup import SERVERS, measure_agent_startup
from benchmarks.common.agent_startup import VARIANTS as READY_VARIANTS
from benchmarks.common.measure import median, spread
from benchmarks.common.result import Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.questions import QUESTIONS
from benchmarks.servers import browsers
from benchmarks.servers.searches import HANDSHAKE_S, measure_searches
from benchmarks.servers.searches import VARIANTS as SEARCH_VARIANTS

MB = 1e6
# What the three servers of one task take as processes, roughly; to stay clear of filling the machine's memory.
_SPAWNED_BYTES = 250 * MB
_SEARCHES = {
    "hub": "toolhub, `search_and_scrape_webpage`",
    "kept": "one httpx2 client, kept",
    "each": "an httpx2 client per call (MiroFlow)",
}
_READY = {
    "hub_sessions": "toolhub, builtin, a session per task and server",
    "hub_catalog": "toolhub, builtin, shared as in mirothinker_1.7.yaml",
    "gather_all": "SDK sessions with a process each, all at once",
}
_BROWSERS = {
    "shared": "toolhub, one Chromium, pages per task",
    "one_driver": "a Chromium per task, one Playwright driver",
    "own": "a Chromium and a Playwright driver per task",
}


@dataclass(frozen=True)
class ServersScale:
    """tasks: with the hub. spawned: with processes, if memory allows. browsing: tasks with a page each."""

    searches: int
    search_rounds: int
    tasks: int
    ready_rounds: int
    spawned: int
    browsing: int
    browser_rounds: int
    browser_settle_s: float = browsers.SETTLE_S
    no_browser: str | None = field(default_factory=browsers.missing)
    """Why no browser can be measured here."""


@dataclass(frozen=True)
class ServersResults:
    """Each round of each variant; pages is empty where there is no browser."""

    searches: dict[str, list[Json]]
    ready: dict[str, list[Json]]
    pages: dict[str, list[Json]]
    has_tls: bool

    def median(self, part: str, variant: str, key: str) -> float | None:
        """The median of the rounds. A list counts by its sum."""
        rounds = getattr(self, part).get(variant, [])
        return median([sum(r[key]) if isinstance(r[key], list) else r[key] for r in rounds]) if rounds else None

    def each(self, part: str, variant: str, key: str, of: str) -> float | None:
        return ratio(self.median(part, variant, key), self.median(part, variant, of))


def run(scale: ServersScale) -> Outcome:
    searches, has_tls = measure_searches(scale.searches, scale.search_rounds)
    spawned = min(scale.spawned, max(1, int(psutil.virtual_memory().available / _SPAWNED_BYTES)))
    ready = {
        variant: [measure_agent_startup(variant, scale.tasks) for _ in range(scale.ready_rounds)]
        for variant in READY_VARIANTS[:2]
    }
    ready["gather_all"] = [measure_agent_startup("gather_all", spawned)]
    pages: dict[str, list[Json]] = {}
    unwaited_cpu_s = 0.0
    if scale.no_browser is None:
        pages, unwaited_cpu_s = browsers.measure_browsers(
            scale.browsing, scale.browser_rounds, settle_s=scale.browser_settle_s
        )
    found = ServersResults(searches, ready, pages, has_tls)
    tables = [_search_table(found, scale), _ready_table(found)]
    return Outcome(
        tables=[*tables, _browser_table(found, scale)] if pages else tables,
        targets=_targets(found, scale),
        notes=_notes(found, scale, spawned),
        raw=_raw(found),
        unwaited_cpu_s=unwaited_cpu_s,
    )


def _notes(found: ServersResults, scale: ServersScale, spawned: int) -> list[str]:
    handshake = "TLS with a certificate made for it" if found.has_tls else "no TLS, as openssl is missing"
    notes = [
        f"The endpoint answers as Serper does, at once; it holds every new connection for {HANDSHAKE_S * 1e3:.0f} ms, "
        f"then speaks {handshake}. Set-up is what the endpoint sees, from accepting a connection to its first request. "
        "Every query is a new one. The clients are used directly, without a server of MCP around them.",
        "Ready: every session has listed its tools, the catalog of the hub left out; in the second row tasks ask as "
        "agents do. Memory is PSS beyond the hub or client before the first task, so what the servers import is in it. "
        "Listing starts no sandbox.",
        f"Medians of {scale.search_rounds} rounds of searches, {scale.ready_rounds} of the hub's readiness, "
        f"{scale.browser_rounds} of browsers; processes are started once.",
    ]
    if spawned < scale.tasks:
        notes.append(
            f"Only {spawned} tasks have processes, for time or memory; nothing is extrapolated to {scale.tasks}."
        )
    if found.pages:
        version = found.pages["own"][0]["version"]
        notes.append(
            f"Chromium {version}, headless, the same arguments, the hidden pages of its address bar off in all of "
            "them, and the same page; drivers and Python included."
        )
    else:
        notes.append(f"Left out: browsers; {scale.no_browser}.")
    return notes


# --- tables -------------------------------------------------------------------------------------------------------


def _search_table(found: ServersResults, scale: ServersScale) -> Table:
    rows: list[Json] = [
        {
            "way": _SEARCHES[variant],
            "connections": found.median("searches", variant, "connections"),
            "setup_ms": _ms(found.median("searches", variant, "setup_s")),
            "setup_each_ms": _ms(found.each("searches", variant, "setup_s", "connections")),
            "wall_s": found.median("searches", variant, "wall_s"),
            "each_ms": _ms(found.each("searches", variant, "wall_s", "requests")),
            "cpu_ms": _ms(found.each("searches", variant, "cpu_s", "requests")),
        }
        for variant in SEARCH_VARIANTS
    ]
    columns = [
        Column("way", "way"),
        Column("connections", "connections"),
        Column("setup_ms", "set-up ms in all"),
        Column("setup_each_ms", "set-up ms per connection", 1),
        Column("wall_s", "wall s", 2),
        Column("each_ms", "ms per search", 2),
        Column("cpu_ms", "CPU ms per search", 2),
    ]
    return Table(f"{scale.searches} searches of one task, one at a time", columns, rows)


def _ready_table(found: ServersResults) -> Table:
    rows: list[Json] = [
        {
            "way": _READY[variant],
            "tasks": found.median("ready", variant, "tasks"),
            "ready": min(answer["ready"] for answer in found.ready[variant]),
            "wanted": found.ready[variant][0]["tasks"] * len(SERVERS),
            "seconds": found.median("ready", variant, "seconds"),
            "each_ms": _ms(found.each("ready", variant, "seconds", "tasks")),
            "processes": found.median("ready", variant, "processes"),
            "each_mb": _mb(found.each("ready", variant, "bytes", "tasks")),
        }
        for variant in READY_VARIANTS
    ]
    columns = [
        Column("way", "way"),
        Column("tasks", "tasks"),
        Column("ready", "ready"),
        Column("wanted", "of"),
        Column("seconds", "wall s", 2),
        Column("each_ms", "ms per task", 1),
        Column("processes", "processes"),
        Column("each_mb", "MB per task", 2),
    ]
    return Table(f"The {len(SERVERS)} servers of MiroThinker, tools listed", columns, rows)


def _browser_table(found: ServersResults, scale: ServersScale) -> Table:
    whole = found.median("pages", "own", "bytes")
    rows: list[Json] = [
        {
            "way": _BROWSERS[variant],
            "mb": _mb(found.median("pages", variant, "bytes")),
            "each_mb": _mb(ratio(found.median("pages", variant, "bytes"), scale.browsing)),
            "percent": _percent(found.median("pages", variant, "bytes"), whole),
            "processes": found.median("pages", variant, "processes"),
            "seconds": found.median("pages", variant, "seconds"),
        }
        for variant in browsers.VARIANTS
    ]
    columns = [
        Column("way", "way"),
        Column("mb", "PSS MB"),
        Column("each_mb", "MB per task"),
        Column("percent", "% of a browser each"),
        Column("processes", "processes"),
        Column("seconds", "s until all pages are there", 1),
    ]
    return Table(f"{scale.browsing} tasks with a page each", columns, rows)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _mb(size: float | None) -> float | None:
    return None if size is None else size / MB


def _percent(value: float | None, base: float | None) -> float | None:
    share = ratio(value, base)
    return None if share is None else share * 100


# --- verdict ------------------------------------------------------------------------------------------------------


def _targets(found: ServersResults, scale: ServersScale) -> list[Target]:
    setup = {variant: found.median("searches", variant, "setup_s") for variant in SEARCH_VARIANTS}
    connections = max(answer["connections"] for answer in found.searches["hub"])
    ours = found.ready["hub_sessions"]
    unready = scale.tasks * len(SERVERS) - min(answer["ready"] for answer in ours)
    pages = {variant: found.median("pages", variant, "bytes") for variant in browsers.VARIANTS}
    left = sum(answer["left_behind"] for answer in found.pages["shared"]) if found.pages else None
    browsing = f"{scale.browsing} tasks in the shared browser, memory"
    seconds = found.median("ready", "hub_sessions", "seconds")
    each_mb = _mb(found.each("ready", "hub_sessions", "bytes", "tasks"))
    return [
        Target("client per call ÷ pooled, set-up", ratio(setup["each"], setup["hub"]), 5, "×", at_most=False),
        Target(f"connections for {scale.searches} searches", connections, 1),
        Target(f"{scale.tasks} tasks × {len(SERVERS)} servers ready", seconds, 1.5, "s"),
        Target("memory per task beyond the hub", each_mb, 3, "MB"),
        Target("sessions not ready", unready, 0),
        Target(f"{browsing}, of a browser and driver each", _percent(pages["shared"], pages["own"]), 65, "%"),
        Target(f"{browsing}, of a browser each on one driver", _percent(pages["shared"], pages["one_driver"]), 65, "%"),
        Target("processes that the shared browser left behind", left, 0),
    ]


def _raw(found: ServersResults) -> Json:
    searches = {
        variant: [{**answer, "setup_s": spread(answer["setup_s"])} for answer in rounds]
        for variant, rounds in found.searches.items()
    }
    return {"searches": searches, "ready": found.ready, "pages": found.pages, "has_tls": found.has_tls}


BENCHMARK = Benchmark(
    "servers",
    QUESTIONS["servers"],
    run,
    full=ServersScale(
        searches=346, search_rounds=1, tasks=60, ready_rounds=3, spawned=10, browsing=5, browser_rounds=2
    ),
    quick=ServersScale(searches=60, search_rounds=1, tasks=60, ready_rounds=1, spawned=5, browsing=2, browser_rounds=1),
)
