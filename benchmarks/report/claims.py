"""What users notice: a comparison per row, and where in the results its two numbers are. No number is written here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """The column `key` of the row whose label, in the table's first column, fits `row`.

    who: what the row's label does not say, as where the variants of a table are its columns.
    """

    row: str
    key: str
    who: str = ""


@dataclass(frozen=True)
class Claim:
    """One row: `today` beside `ours`, in the first table of the question whose title fits `title` and that has both.

    what: may take groups of the title, `{0}`, and the heading of our `{column}`. unit: a number in the table times
    `times` is in it. is_rate: more is better. is_headline: README.md shows it too. is_modelled: a simulator computed
    the numbers.
    statement: the title of a picture, with `{today}` and `{ours}`. rows: fits the rows that the picture shows; none:
    only the two numbers.
    """

    what: str
    question: str
    title: str
    today: Cell
    ours: Cell
    unit: str
    times: float = 1.0
    is_rate: bool = False
    is_headline: bool = False
    is_modelled: bool = False
    statement: str = ""
    rows: str = ""


_SDK = r"^SDK, persistent session$"
_EMBEDDED = r"^toolhub embedded$"
_SOCKET = r"^toolhub serve, unix socket$"
_CHEAP = "^A server that costs nothing"
_WRITTEN = r"^A server written with the SDK \("
_GOODPUT = r"windows? of .*everything"
_OTHERS = "^Other services"
_MIROFLOW = Cell("^MiroFlow's pattern$", "task_s")

CLAIMS = (
    Claim(
        "A research task on {0}", "task", "^Where the time goes: (.*)", _MIROFLOW, Cell("^toolhub", "task_s"), "s",
        is_headline=True, statement="A research task takes {ours} instead of {today}", rows=".",
    ),
    Claim(
        "The same in MiroFlow's own loop, one import changed", "task", "^Where the time goes: ", _MIROFLOW,
        Cell("ToolManager$", "task_s"), "s", is_headline=True,
    ),
    Claim(
        "What the tools add to {0} of MiroThinker, its services answering at once", "mirothinker",
        r"^MiroThinker itself: (a run of \d+ turns)", Cell("^MiroThinker's", "seconds"),
        Cell("^toolhub's", "seconds"), "s", is_headline=True,
        statement="With toolhub a run of MiroThinker whose services answer at once takes {ours}, not {today}", rows=".",
    ),
    *(
        Claim(
            "A research task, modelled: {0}", "task", f"^Where the time goes, modelled: ({case})", _MIROFLOW,
            Cell("^toolhub", "task_s"), "s", is_modelled=True,
        )
        for case in ("60 tasks.* 4 cores", "60 tasks.* 16 cores", "120 tasks.* 141 GB.*", "120 tasks.* 80 GB.*")
    ),
    Claim(
        "{0}, with admission, until all are done", "admission", "^A cache of 24k tokens: (.*)",
        Cell("^all at once$", "makespan_s"), Cell("^token ledger$", "makespan_s"), "s",
    ),
    Claim(
        "The same beside a fixed number of tasks at a time, the best of all", "admission", "^A cache of 24k tokens: ",
        Cell("^at most", "makespan_s"), Cell("^token ledger$", "makespan_s"), "s",
    ),
    Claim(
        "{0}, with admission in the LLM proxy, until all are done", "admission", "^A cache of 15k tokens: (.*)",
        Cell("^all at once$", "makespan_s"), Cell("^token ledger in the LLM proxy$", "makespan_s"), "s",
    ),
    Claim(
        "One call", "overhead", _WRITTEN, Cell("MiroFlow", "p50_us"), Cell(_EMBEDDED, "p50_us"), "ms", 1e-3,
        is_headline=True, statement="A call takes {ours}; with a process per call it takes {today}",
        rows="process per call|^SDK, persistent session$|^toolhub embedded$|^toolhub serve",
    ),
    Claim(
        "One call, by langchain-mcp-adapters as it begins", "overhead", _WRITTEN,
        Cell("^langchain-mcp-adapters, get_tools", "p50_us"), Cell(_EMBEDDED, "p50_us"), "ms", 1e-3,
    ),
    Claim(
        "One call, on a session that is kept", "overhead", _WRITTEN, Cell(_SDK, "p50_us"), Cell(_EMBEDDED, "p50_us"),
        "ms", 1e-3,
    ),
    Claim(
        "One call, through a hub in another process", "overhead", _WRITTEN, Cell(_SDK, "p50_us"),
        Cell(_SOCKET, "p50_us"), "ms", 1e-3,
    ),
    Claim(
        "One call, over HTTP through a hub in another process", "overhead", _WRITTEN, Cell("^fastmcp proxy", "p50_us"),
        Cell("^toolhub serve, MCP over HTTP", "p50_us"), "ms", 1e-3,
    ),
    Claim(
        "A server that costs nothing: {column}", "throughput", _CHEAP, Cell(_SDK, "at_64_per_s"),
        Cell(_EMBEDDED, "at_64_per_s"), "calls/s", is_rate=True,
        statement="With 64 calls in flight toolhub makes {ours}, the SDK {today}",
    ),
    Claim(
        "{0}, a process each, until all can work", "storm", r"^([\d,]+ tasks × \d+ servers)",
        Cell("^SDK sessions", "seconds"), Cell("^toolhub, spawn: fork, first", "seconds"), "s", is_headline=True,
        statement="All tasks of a sweep can work after {ours} instead of {today}", rows="SDK|fork",
    ),
    Claim(
        "{0}, a process each, memory", "storm", r"^([\d,]+ tasks × \d+ servers)",
        Cell("^SDK sessions", "pss_mib"), Cell("^toolhub, spawn: fork, first", "pss_mib"), "MiB",
    ),
    Claim(
        "An idle task more, with MiroThinker's servers, memory", "density", "what each further idle task",
        Cell("spawn: exec$", "mib", "a process per task and server"), Cell("^builtin, a session", "mib"), "MiB",
        statement="An idle task takes {ours} instead of {today}",
    ),
    Claim(
        "A sandbox from the pool, until its first result", "sandbox", "^Until the first result",
        Cell("^ipykernel$", "p50_ms"), Cell("^bare, from the pool", "p50_ms"), "ms",
        statement="A sandbox gives its first result after {ours}, a Jupyter kernel after {today}",
    ),
    Claim(
        "A search over TLS, of a long task", "servers", "searches of one task", Cell("MiroFlow", "each_ms"),
        Cell("^toolhub", "each_ms"), "ms",
        statement="A search takes {ours}; with a client per call it takes {today}", rows=".",
    ),
    Claim(
        "A search over TLS, beside a client that is kept", "servers", "searches of one task",
        Cell("kept$", "each_ms"), Cell("^toolhub", "each_ms"), "ms",
    ),
    Claim(
        "{0} in a browser, memory", "servers", r"^([\d,]+ tasks with a page each)",
        Cell("^a Chromium and a Playwright driver", "mb"), Cell("^toolhub", "mb"), "MB",
    ),
    Claim(
        "First token after a tool of {0} whose wait emptied the cache", "kv", r"^A tool of ([\d.,]+ s) while",
        Cell("^evicted, no hints", "ttft_ms"), Cell("^evicted, prefill-ahead by the agent", "ttft_ms"), "ms",
        statement="After a long tool call the first token comes after {ours} instead of {today}",
    ),
    Claim(
        "A turn with several calls", "loop", "^A turn's wall time",
        Cell("^4 calls of", "one by one", "calls after it, one by one (MiroFlow)"), Cell("^4 calls of", "streaming"),
        "s", statement="A turn with four calls takes {ours} instead of {today}",
    ),
    Claim(
        "A turn with one call, nothing behind it", "loop", "^A turn's wall time",
        Cell("^1 call, nothing", "together", "calls after it"), Cell("^1 call, nothing", "streaming"), "s",
    ),
    Claim(
        "More calls than a service stands: answered in time", "overload", _GOODPUT,
        Cell("^no backpressure", "goodput"), Cell("^toolhub", "goodput"), "calls/s", is_rate=True,
        statement="A service with too many calls answers {ours} in time instead of {today}",
    ),
    Claim(
        "The same where calls do not slow each other down", "overload", _OTHERS,
        Cell("(nobody is in another's way|calls do not slow).*no backpressure", "goodput", "no backpressure"),
        Cell("(nobody is in another's way|calls do not slow).*toolhub", "goodput"), "calls/s", is_rate=True,
    ),
    Claim(
        "A server was killed: until its next call is served", "recover", "^A server written with the SDK",
        Cell("^plain start with the SDK", "p50_ms"), Cell("^next call served", "p50_ms"), "ms",
    ),
)  # fmt: skip
