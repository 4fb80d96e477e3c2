"""What do the tools cost a run of MiroThinker? A whole run whose model and services answer at once.

With `--checkout` the original agent runs; without it, a loop that makes the same calls.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.hub_process import ServedHub
from benchmarks.common.measure import interleaved, median
from benchmarks.common.result import ROOT, Benchmark, Column, Json, Outcome, Table, Target, ratio
from benchmarks.common.subprocess_worker import WorkerFailed
from benchmarks.mirothinker.services import ANSWER, Services, open_services, wanted
from benchmarks.questions import QUESTIONS
from testbed.third_party import SetupError
from toolhub.config.document import read_document

_AGENT = Path(__file__).with_name("agent.py")
_HUB_CONFIG = ROOT / "configs" / "mirothinker_1.7.yaml"
_FETCH = (
    "fetch it: git clone https://github.com/MiroMindAI/MiroThinker && "
    "(cd MiroThinker/apps/miroflow-agent && uv sync --python 3.12)"
)
# A run as it is takes half a minute on two quiet cores.
_RUN_S = 600.0


@dataclass(frozen=True)
class ManagerVariant:
    """manager: whose ToolManager. hub: the hub that runs before, if any."""

    label: str
    manager: str
    hub: str = ""


AS_IT_IS = ManagerVariant("MiroThinker's ToolManager: a process per call", "mirothinker")
PRIVATE = ManagerVariant("toolhub's ToolManager, one import changed: it starts a hub", "toolhub")
RUNNING = ManagerVariant("the same, at a hub that is running", "toolhub", hub="mine")
BUILTIN = ManagerVariant("the same, with the hub's servers instead of its own", "toolhub", hub="hub")


@dataclass(frozen=True)
class MiroThinkerScale:
    """checkout: the folder of MiroThinker; empty for the loop of the same calls."""

    turns: int
    rounds: int
    checkout: str = ""


def run(scale: MiroThinkerScale) -> Outcome:
    """Raises SetupError if there is no MiroThinker in the checkout."""
    python = _python_of(Path(scale.checkout)) if scale.checkout else None
    variants = [AS_IT_IS, PRIVATE, RUNNING, *([BUILTIN] if python else [])]
    played: dict[str, list[Json]] = {variant.label: [] for variant in variants}
    with open_services(scale.turns) as services:
        # Nothing is discarded: in each round everything is started anew.
        for _, variant in interleaved(variants, scale.rounds - 1):
            played[variant.label].append(_play(variant, services, python))
    seconds = {label: [found["seconds"] for found in runs] for label, runs in played.items()}
    middle = {label: median(found) for label, found in seconds.items()}
    base = middle[AS_IT_IS.label]
    rows = [
        {
            "way": label,
            "seconds": middle[label],
            "listing_s": median([each["listing_s"] for each in played[label]]),
            "turn_ms": median([each["calls_s"] for each in played[label]]) / scale.turns * 1e3,
            "times": ratio(base, middle[label]),
            "span": f"{min(found):.1f}–{max(found):.1f}",
            "runs": len(found),
        }
        for label, found in seconds.items()
    ]
    what = "MiroThinker itself" if python else "A loop of the same calls, not MiroThinker itself"
    return Outcome(
        [Table(f"{what}: a run of {scale.turns} turns with its own servers", _COLUMNS, rows)],
        [Target("MiroThinker ÷ toolhub, time of a run", ratio(base, middle[PRIVATE.label]), 5, "×", at_most=False)],
        _ORIGINAL if python else _LOOP,
        {"seconds_by_round": seconds},
    )


_COLUMNS = [
    Column("way", "tool manager"),
    Column("seconds", "the run, s", 1),
    Column("times", "times faster", 1),
    Column("listing_s", "of it, listing the tools, s", 1),
    Column("turn_ms", "each call, ms"),
    Column("span", "least–most s"),
    Column("runs", "runs"),
]
_ALWAYS = (
    "The model and the services behind the tools (search, pages, summaries) are stand-ins on this machine that answer "
    "at once. So the time is what the agent and its tools add to a run; a real run takes the services' time besides.",
    "A turn is a Google search or a page that is read and summed up, in turns; no two are equal. No turn runs code, as "
    "that is done by E2B.",
)
_ORIGINAL = [
    "The agent is MiroThinker's own (mirothinker_1.7_keep5_max200, three servers), unchanged but for the import of its "
    "ToolManager. The time is that of its `execute_task_pipeline`; its imports before are not in it.",
    *_ALWAYS,
    "In the last row search and pages are the hub's builtins, from configs/mirothinker_1.7.yaml: no process per task.",
]
_LOOP = [
    "A loop that asks for the definitions of three servers and then makes the calls of such a run; no agent, no model. "
    "The servers are rebuilt on the SDK and import less than the originals. A process per call is what MiroThinker's "
    f"ToolManager starts. For the original agent, {_FETCH}; then: toolhub bench mirothinker --checkout MiroThinker",
    *_ALWAYS,
]


def _python_of(checkout: Path) -> str:
    python = (checkout / "apps" / "miroflow-agent" / ".venv" / "bin" / "python").absolute()
    if not python.exists():
        raise SetupError(f"no MiroThinker with an environment in {checkout} ({python} is missing); {_FETCH}")
    pipeline = checkout / "apps" / "miroflow-agent" / "src" / "core" / "pipeline.py"
    if "toolhub.miroflow" in pipeline.read_text():
        raise SetupError(
            f"{pipeline} imports toolhub's ToolManager already; the original is needed to compare; {_FETCH}"
        )
    return str(python)


def _play(variant: ManagerVariant, services: Services, python: str | None) -> Json:
    """Return what `agent` says of one run. Raises WorkerFailed if it did not do all that the script says."""
    with ExitStack() as stack:
        result = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "result.json"
        environment = {**os.environ, **services.environment, **stack.enter_context(_hub(variant, services))}
        if python:
            folder = Path(python).parents[2]
            command = [python, str(_AGENT), variant.manager, f"{services.url}/v1", str(result)]
        else:
            folder = ROOT
            command = [sys.executable, "-m", "benchmarks.mirothinker.loop", variant.manager, services.url, str(result)]
            command.append(str(services.turns))
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=_RUN_S
        )
        counts = services.take_counts()
        told: Json = json.loads(result.read_text()) if result.exists() else {}
    if done.returncode or told.get("answer") != ANSWER or counts != wanted(services.turns):
        last = "\n".join(done.stderr.splitlines()[-5:])
        raise WorkerFailed(f"{variant.label}: ended with {done.returncode}, {told}, requests {dict(counts)}: {last}")
    return told


@contextmanager
def _hub(variant: ManagerVariant, services: Services) -> Iterator[dict[str, str]]:
    """Open the hub, if any. Yield the variables that tell the agent which hub to use."""
    if variant.manager == "mirothinker":
        yield {}
        return
    ours = {
        "PYTHONPATH": str(ROOT),
        "TOOLHUB_COMMAND": shlex.join([sys.executable, "-m", "toolhub"]),
        "TOOLHUB_SERVERS": variant.hub or "mine",
    }
    if not variant.hub:
        yield ours
        return
    servers: Json = read_document(_HUB_CONFIG).data["servers"] if variant.hub == "hub" else {}
    with ServedHub(servers, environment=services.environment) as hub:
        yield {**ours, "TOOLHUB_URL": hub.address}


BENCHMARK = Benchmark(
    "mirothinker",
    QUESTIONS["mirothinker"],
    run,
    full=MiroThinkerScale(turns=20, rounds=3),
    quick=MiroThinkerScale(turns=4, rounds=1),
    options=("checkout",),
)
