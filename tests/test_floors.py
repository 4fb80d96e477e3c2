"""The floors of the design: a module imports only from its own floor or below.

Whoever reads a module then knows that nothing above it can be involved; whoever breaks the rule is told which import.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolhub

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
FLOORS = [
    ["errors", "model", "wire", "overload", "single_flight", "task_ids", "tool_names"],
    [
        *("limits", "sessions.lifecycle", "sessions.events"),
        *("function_tools", "owned", "shared_resources", "extensions", "config", "private_files", "scratch"),
    ],
    ["channel", "spawn", "layers", "catalog", "cassette"],
    ["sessions.session"],
    ["sessions.slot"],
    ["sessions.pool", "task"],
    ["hub"],
    ["serve", "miroflow", "client"],
    ["cli", "__main__"],
]
FLOOR_OF = {f"toolhub.{name}": number for number, names in enumerate(FLOORS) for name in names}
PACKAGES = {
    "toolhub": ROOT / "toolhub",
    "toolhub_servers": ROOT / "servers/toolhub_servers",
    "toolhub_sandbox": ROOT / "sandbox/toolhub_sandbox",
    "toolhub_agent": ROOT / "agent_loop/toolhub_agent",
    "benchmarks": ROOT / "benchmarks",
    "testbed": ROOT / "testbed",
}
GROUND = frozenset({0, 1})
# What those outside may use beside `from toolhub import ...`: values, errors and settings, and the drop-in.
PUBLIC_MODULES = frozenset(
    {"toolhub.errors", "toolhub.extensions", "toolhub.model", "toolhub.config", "toolhub.miroflow", "toolhub.task_ids"}
)
# What a command that another package adds has in common with toolhub's own.
COMMAND_MODULES = frozenset({"toolhub.cli.help", "toolhub.cli.options", "toolhub.cli.shared"})
SDK = frozenset({"mcp", "mcp_types"})
SDK_USERS = ("toolhub.channel.", "toolhub.serve.", "toolhub_servers.", "benchmarks.")


def module_name(package: str, path: Path) -> str:
    """`a.b` for a/b.py and `a.b.__init__` for a/b/__init__.py."""
    return ".".join([package, *path.relative_to(PACKAGES[package]).with_suffix("").parts])


MODULES = {
    module_name(package, path): path for package, home in PACKAGES.items() for path in sorted(home.rglob("*.py"))
}
KNOWN = frozenset(name.removesuffix(".__init__") for name in MODULES)


@functools.cache  # not when the tests are collected: every worker does that
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(), filename=str(path)) for name, path in MODULES.items()}


def imports(name: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Every (module, name in it or "") that a module imports, at whatever depth."""
    home = name.split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: -node.level] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield (submodule, "") if submodule in KNOWN else (source, alias.name)


@functools.cache
def all_imports() -> list[tuple[str, str, str]]:
    return [(name, *imported) for name, tree in trees().items() for imported in imports(name, tree)]


def floor(module: str) -> int | None:
    """The floor a module of toolhub stands on; None for the package itself."""
    parts = module.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((FLOOR_OF[prefix] for prefix in prefixes if prefix in FLOOR_OF), None)


def package_of(module: str) -> str:
    return module.split(".")[0]


def test_every_module_of_toolhub_stands_on_a_floor():
    names = [
        name
        for name in MODULES
        if package_of(name) == "toolhub" and name not in ("toolhub.__init__", "toolhub.sessions.__init__")
    ]
    assert [name for name in names if floor(name) is None] == []
    assert len(names) > 30  # the reader of this test would otherwise not notice that it looks at nothing


def test_a_module_imports_only_from_its_floor_or_below():
    wrong = []
    for name, module, member in all_imports():
        own = floor(name)
        if own is None or package_of(module) != "toolhub":
            continue
        other = floor(module)
        if other is None:  # the package itself lends names of all floors; only its version is its own
            other = 0 if member == "__version__" else len(FLOORS) - 1
        if other > own:
            wrong.append(f"{name} (floor {own}) imports {member or '*'} of {module} (floor {other})")
    assert wrong == []


def test_toolhub_finds_servers_sandbox_and_agent_by_entry_point_only():
    outside = ("toolhub_servers", "toolhub_sandbox", "toolhub_agent", "benchmarks", "testbed", "tests")
    assert [
        f"{name} imports {module}"
        for name, module, _ in all_imports()
        if package_of(name) == "toolhub" and package_of(module) in outside
    ] == []


def test_the_sandbox_and_the_servers_use_only_the_ground_floors():
    may_use = {"toolhub_sandbox": set(), "toolhub_servers": {"toolhub_sandbox"}}
    wrong = [
        f"{name} imports {member} of {module}"
        for name, module, member in all_imports()
        if (package := package_of(name)) in may_use
        and package_of(module) in PACKAGES
        and package_of(module) not in {package, *may_use[package]}
        and floor(module) not in GROUND
        and (module, member) != ("toolhub", "__version__")
    ]
    assert wrong == []


def test_the_agent_loop_and_the_benchmarks_use_only_what_is_public():
    outsiders = ("toolhub_agent", "benchmarks")
    public = {*toolhub.__all__, "__version__"}
    wrong = [
        f"{name} imports {member or module} of {module}"
        for name, module, member in all_imports()
        if package_of(name) in outsiders and package_of(module) == "toolhub"
        if not (module == "toolhub" and (member in public or not member))
        and ".".join(module.split(".")[:2]) not in PUBLIC_MODULES
        and not (name.startswith("toolhub_agent.cli.") and module in COMMAND_MODULES)
        # The soak runs the command itself, in a process whose clock it can move.
        and (name, module, member) != ("benchmarks.soak.hub", "toolhub.cli", "main")
    ]
    assert wrong == []


def test_nothing_but_their_own_tests_imports_the_benchmarks():
    """And they import no test: what both need is in `testbed`."""
    own_tests = ("benchmarks", "engine/test_engine_samples_real.py", "engine/test_engine_decoding.py")
    tests = ROOT / "tests"
    importers = [
        str(path.relative_to(tests))
        for path in sorted(tests.rglob("*.py"))
        if any(package_of(module) == "benchmarks" for module, _ in imports("tests", ast.parse(path.read_text())))
    ]
    assert [path for path in importers if not path.startswith(own_tests)] == []
    wrong = [
        f"{name} imports {module}"
        for name, module, _ in all_imports()
        if package_of(module) in ("benchmarks", "tests") and package_of(name) != package_of(module)
    ]
    assert wrong == []


def test_the_testbed_imports_nothing_of_the_project():
    wrong = [
        f"{name} imports {module}"
        for name, module, _ in all_imports()
        if package_of(name) == "testbed" and package_of(module) in {*PACKAGES, "tests"} - {"testbed"}
    ]
    assert wrong == []


def test_the_sdk_is_imported_only_where_it_is_spoken():
    wrong = [
        f"{name} imports {module}"
        for name, module, _ in all_imports()
        if package_of(module) in SDK and not f"{name}.".startswith(SDK_USERS)
    ]
    assert wrong == []


def test_every_task_has_an_owner():
    bare = {"create_task", "ensure_future"}
    wrong = [
        f"{name}:{node.lineno}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if package_of(name) == "toolhub"
        and (
            (isinstance(node, ast.Attribute) and node.attr in bare) or (isinstance(node, ast.Name) and node.id in bare)
        )
    ]
    assert wrong == []


@pytest.mark.parametrize("package", [*PACKAGES, "helpers"])
def test_no_class_name_is_used_twice_within_a_package(package: str) -> None:
    """A reader who searches for a class finds one."""
    home = PACKAGES.get(package, ROOT / "tests" / package)
    homes: dict[str, list[str]] = {}
    for path in sorted(home.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
