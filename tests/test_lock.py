"""The lock that tests are installed from: complete, with hashes, and free of anything about one machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "ci.txt"
ENTRIES = re.split(r"\n(?=\S)", "\n".join(line for line in LOCK.read_text().splitlines() if not line.startswith("#")))
PIN = re.compile(r"([a-z0-9-]+)==([\w.!+]+)(?: ; (.*?))? \\\n")


def pins() -> dict[str, list[str]]:
    """Every package with its versions; one may have two, each for some Pythons."""
    found: dict[str, list[str]] = {}
    for entry in ENTRIES:
        pin = PIN.match(entry)
        assert pin is not None, entry
        found.setdefault(pin[1], []).append(pin[2])
    return found


def wanted(extra: str) -> set[str]:
    """The requirements of an extra and of those that it includes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = set(project["dependencies"])
    for spec in project["optional-dependencies"][extra]:
        own = re.match(r"toolhub-runtime\[(.*)\]", spec)
        found |= set().union(*(wanted(name) for name in own[1].split(","))) if own else {spec}
    return found


def test_every_pin_has_hashes_and_names_no_place() -> None:
    for entry in ENTRIES:
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)) >= 1, entry
    assert re.findall(r"://|file:|--index|--find-links|@ ", LOCK.read_text()) == []


def test_every_requirement_of_the_tests_is_locked_at_its_floor_or_above() -> None:
    locked = pins()
    for spec in wanted("test"):
        name = re.match(r"[\w-]+", spec)[0].lower().replace("_", "-")  # type: ignore[index]  # every spec has a name
        floor = re.search(r">=([\d.]+)", spec)
        assert name in locked, f"{spec} is not in {LOCK.name}; run `make lock`"
        for version in locked[name]:
            assert floor is None or numbers(version) >= numbers(floor[1]), f"{name} {version}; run `make lock`"


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
