"""A made-up task (see `traces`) as something that can be played: what the model says, and what each call answers."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common.result import Json
from benchmarks.llm.prompts import Writer
from benchmarks.llm.scripted_agent import called
from benchmarks.model.traces import TaskTrace

_LAST_WORD = "That is all."
CALL_TOKENS = 100
"""About what a call's XML takes with the small tokenizers here; the rest of a turn's tokens are thoughts."""


@dataclass(frozen=True)
class Script:
    """answers: what the model says, turn by turn. plan: by query, what a call of it takes and gives."""

    task: str
    objective: str
    answers: Sequence[str]
    plan: Json

    def to_json(self) -> Json:
        return {"task": self.task, "objective": self.objective, "answers": list(self.answers)}


def write(trace: TaskTrace, writer: Writer) -> Script:
    """A script of the trace, with texts that no cache knows. Its calls take the trace's seconds."""
    name = f"t{uuid.uuid4().hex[:6]}"
    answers: list[str] = []
    plan: Json = {}
    for turn in trace.turns[:-1]:
        # No thoughts about nothing: a text of no tokens is none.
        thoughts = turn.decode - CALL_TOKENS * len(turn.calls)
        parts = [writer.fresh(thoughts)] if thoughts > 0 else []
        for call in turn.calls:
            query = f"{name} {len(plan)}"
            plan[query] = {"kind": call.kind, "seconds": call.seconds, "text": writer.fresh(call.result_tokens)}
            parts.append(called(call.kind, call.kind, {"q": query}))
        answers.append("\n".join(parts))
    return Script(name, writer.fresh(trace.turns[0].new_tokens), [*answers, _LAST_WORD], plan)
