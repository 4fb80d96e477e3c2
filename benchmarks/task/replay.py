"""Made-up tasks played on a real engine, in every variant, several at once; see `variants`."""

from __future__ import annotations

import json
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import httpx2

from benchmarks.common.measure import interleaved, tree_cpu_seconds
from benchmarks.common.result import ROOT, Json
from benchmarks.common.subprocess_worker import Worker
from benchmarks.kv.history import read_metric
from benchmarks.llm.prompts import Writer, open_writer
from benchmarks.llm.scripted_agent import Served, called
from benchmarks.model.traces import TOOLS, TaskTrace, make_task
from benchmarks.task.times import TaskTimes

_LAST_WORD = "That is all."
CALL_TOKENS = 100
"""Tokens of a call's XML with the small tokenizers here, roughly. The rest of a turn's tokens are thoughts."""


@dataclass(frozen=True)
class TaskScript:
    """One task. answers: what the model says, by turn. plan: seconds and text of each call, by query."""

    task: str
    objective: str
    answers: Sequence[str]
    plan: Json

    def to_json(self) -> Json:
        return {"task": self.task, "objective": self.objective, "answers": list(self.answers)}


def write(trace: TaskTrace, writer: Writer) -> TaskScript:
    """Write a script of the trace, with texts that no cache has. Its calls take the trace's seconds."""
    name = f"t{uuid.uuid4().hex[:6]}"
    answers: list[str] = []
    plan: Json = {}
    for turn in trace.turns[:-1]:
        # A text of no tokens is empty.
        thoughts = turn.decode - CALL_TOKENS * len(turn.calls)
        parts = [writer.fresh(thoughts)] if thoughts > 0 else []
        for call in turn.calls:
            query = f"{name} {len(plan)}"
            plan[query] = {"kind": call.kind, "seconds": call.seconds, "text": writer.fresh(call.result_tokens)}
            parts.append(called(call.kind, call.kind, {"q": query}))
        answers.append("\n".join(parts))
    return TaskScript(name, writer.fresh(trace.turns[0].new_tokens), [*answers, _LAST_WORD], plan)


_SERVER = ROOT / "benchmarks" / "common" / "mcp_servers" / "research.py"
_PATIENCE_S = 600.0
# The sum of seconds that all requests have waited, since the engine began.
_QUEUED = "vllm:request_queue_time_seconds_sum"


@dataclass(frozen=True)
class Replay:
    """tasks: at once, of so many turns, with the tokens of a full task's scaled down; see `traces.make_task`.

    tools: what the tools' seconds are multiplied by; less than 1 only where nothing is measured.
    """

    tasks: int = 3
    turns: int = 4
    scale: float = 0.25
    rounds: int = 2
    tools: float = 1.0

    def traces(self, number: int) -> list[TaskTrace]:
        """Return the tasks of a round. They differ from those of other rounds."""
        made = [make_task(number * self.tasks + seed, self.scale, self.turns) for seed in range(self.tasks)]
        return [trace.with_tools(self.tools) for trace in made]


@dataclass(frozen=True)
class Round:
    """One round. queue_s: the sum of all requests' waits at the engine. cpu_s: of agents, hub and tool servers."""

    traces: list[TaskTrace]
    times: list[TaskTimes]
    queue_s: float
    cpu_s: float
    starts: int
    """How many servers start if each listing of tools and each call starts one."""

    @property
    def split(self) -> Json:
        """Seconds per task. The parts add up to task_s."""
        queue_s = self.queue_s / len(self.times)
        return {
            "queue_s": queue_s,
            "prefill_s": fmean(times.first_s for times in self.times) - queue_s,
            "decode_s": fmean(times.decode_s for times in self.times),
            "tools_s": fmean(times.tools_s for times in self.times),
            "start_s": fmean(times.start_s for times in self.times),
            "task_s": fmean(times.wall_s for times in self.times),
        }

    def to_json(self) -> Json:
        times = [each.to_json() for each in self.times]
        return {**self.split, "cpu_s": self.cpu_s, "starts": self.starts, "tasks": times}


async def measure_replay(served: Served, replay: Replay, variants: Sequence[str]) -> dict[str, list[Round]]:
    """Play all variants in turns. In a round they have the same tasks with different texts, which no cache has."""
    found: dict[str, list[Round]] = {variant: [] for variant in variants}
    async with httpx2.AsyncClient(timeout=_PATIENCE_S, trust_env=False) as http:
        writer = await open_writer(http, served)
        # Nothing is discarded: in each round the variant's process and all that it starts are new.
        for number, variant in interleaved(variants, replay.rounds - 1):
            found[variant].append(await _play(http, served, variant, replay.traces(number), writer))
    return found


async def _play(
    http: httpx2.AsyncClient, served: Served, variant: str, traces: list[TaskTrace], writer: Writer
) -> Round:
    scripts = [write(trace, writer) for trace in traces]
    plan = {query: planned for script in scripts for query, planned in script.plan.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        path.write_text(json.dumps(plan))
        servers = {kind: [sys.executable, str(_SERVER), kind, str(path)] for kind in TOOLS}
        arguments = {"variant": variant, "served": asdict(served), "servers": servers}
        with Worker("benchmarks.task.variants:open_variant", arguments) as worker:
            worker.wait_ready()
            await _empty_cache(http, served)
            queued, cpu = await read_metric(http, served, _QUEUED), tree_cpu_seconds(worker.pid)
            request = {"scripts": [script.to_json() for script in scripts], "plan": plan}
            answer = worker.ask(request, within=_PATIENCE_S)
            cpu_s = tree_cpu_seconds(worker.pid) - cpu
            waited = (await read_metric(http, served, _QUEUED) or 0.0) - (queued or 0.0)
    times = [TaskTimes.of(each) for each in answer["tasks"]]
    for script, each in zip(scripts, times, strict=True):
        _check(variant, script, each)
    return Round(traces, times, waited, cpu_s, len(traces) * len(servers) + len(plan))


async def _empty_cache(http: httpx2.AsyncClient, served: Served) -> None:
    """Empty the cache, so that no variant reuses what an earlier one computed. Only real engines can."""
    answer = await http.post(f"{served.root}/reset_prefix_cache")
    if answer.status_code != httpx2.codes.NOT_FOUND:
        answer.raise_for_status()


def _check(variant: str, script: TaskScript, times: TaskTimes) -> None:
    """Raise if a call failed or a turn differed from the script: it must not count as a fast one."""
    found, wanted = (len(times.turns), len(times.calls)), (len(script.answers), len(script.plan))
    if found != wanted:
        raise RuntimeError(f"{variant}: {script.task} had {found} turns and calls instead of {wanted}")
