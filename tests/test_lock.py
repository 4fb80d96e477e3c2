"""The locks of the tests and of the documentation: complete, with hashes, free of anything about one machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
LOCKS = {"test": ROOT / "requirements" / "ci.txt", "docs": ROOT / "requirements" / "docs.txt"}
"""By the extra that a lock is for."""
PIN = re.compile(r"([a-z0-9-]+)==([\w.!+]+)(?: ; (.*?))? \\\n")


def entries(lock: Path) -> list[str]:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    return re.split(r"\n(?=\S)", "\n".join(lines))


def pins(lock: Path) -> dict[str, list[str]]:
    """Every package with its versions; one may have two, each for some Pythons."""
    found: dict[str, list[str]] = {}
    for entry in entries(lock):
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


@pytest.mark.parametrize("lock", LOCKS.values(), ids=lambda path: path.name)
def test_every_pin_has_hashes_and_names_no_place(lock: Path) -> None:
    for entry in entries(lock):
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)) >= 1, entry
    assert re.findall(r"://|file:|--index|--find-links|@ ", lock.read_text()) == []


@pytest.mark.parametrize("extra", LOCKS)
def test_every_requirement_of_the_tests_and_the_documentation_is_locked_at_its_floor_or_above(extra: str) -> None:
    locked = pins(LOCKS[extra])
    for spec in wanted(extra):
        name = re.match(r"[\w-]+", spec)[0].lower().replace("_", "-")
        floor = re.search(r">=([\d.]+)", spec)
        assert name in locked, f"{spec} is not in {LOCKS[extra].name}; run `make lock`"
        for version in locked[name]:
            assert floor is None or numbers(version) >= numbers(floor[1]), f"{name} {version}; run `make lock`"


def test_the_documentation_and_the_tests_lock_the_same_versions_of_what_both_need() -> None:
    tests, documentation = pins(LOCKS["test"]), pins(LOCKS["docs"])
    assert {name: documentation[name] for name in tests if name in documentation} == {
        name: versions for name, versions in tests.items() if name in documentation
    }


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
