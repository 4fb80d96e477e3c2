"""All questions, in the order in which they are asked and shown."""

from __future__ import annotations

from typing import Any

from benchmarks import (
    density,
    idle,
    init,
    kv,
    loop,
    overhead,
    overload,
    recover,
    sandbox,
    servers,
    storm,
    sweep,
    task,
    throughput,
)
from benchmarks.result import Question
from benchmarks.soak import question as soak

QUESTIONS: dict[str, Question[Any]] = {
    module.QUESTION.name: module.QUESTION
    for module in (
        overhead,
        throughput,
        init,
        storm,
        density,
        overload,
        sweep,
        soak,
        recover,
        idle,
        sandbox,
        servers,
        kv,
        loop,
        task,
    )
}
