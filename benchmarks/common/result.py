"""The result of a question: tables, targets and notes. `report` decides how the numbers are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from toolhub import Config, parse_config

Json = dict[str, Any]
Scale = TypeVar("Scale")

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Column:
    """One column: the key of its values in the rows, its heading (with the unit), and the digits shown."""

    key: str
    label: str
    digits: int = 0


@dataclass(frozen=True)
class Table:
    """`rows` are mappings from column keys to numbers or text; None is shown as a dash."""

    title: str
    columns: list[Column]
    rows: list[Json]


@dataclass(frozen=True)
class Target:
    """A claim with its number. `value` None: not measured in this run."""

    claim: str
    value: float | None
    limit: float
    unit: str = ""
    at_most: bool = True


@dataclass
class Outcome:
    """One run of one question."""

    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: Json = field(default_factory=dict)
    unwaited_cpu_s: float = 0.0
    """CPU time of our own processes that were not waited for. Without it they would count as others' noise."""

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True)
class Benchmark(Generic[Scale]):
    """One benchmark: `run` takes how much to measure."""

    name: str
    asks: str
    run: Callable[[Scale], Outcome]
    full: Scale
    quick: Scale
    in_all: Scale | None = None
    """What `all` measures instead of `full` where that takes hours. This result is not kept."""
    options: Sequence[str] = ()
    """Fields of `full`, all numbers, that the command line may set, such as `--calls 1000`."""


def ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def hub_config(servers: Mapping[str, Json], state_dir: Path, **limits: int) -> Config:
    """The config of a hub that keeps its files out of the user's."""
    document = {"hub": {"state_dir": str(state_dir)}, "servers": dict(servers), "limits": limits}
    return parse_config(document, environ={})
