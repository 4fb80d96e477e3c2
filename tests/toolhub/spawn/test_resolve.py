"""What launchers run is learned from real ones, used while nothing has changed, and forgotten when it fails."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest
from npx_uvx_packages import PYTHON, launcher_of, npm_package, npx_of, running, uvx, variables, wheel

from testbed import third_party
from toolhub.spawn.launchers import resolver as resolve
from toolhub.spawn.launchers.resolver import FAILED_S, MOST_FAILURES, UNPINNED_S, Command, Resolver


@pytest.fixture
def resolver(tmp_path: Path) -> Resolver:
    return Resolver(tmp_path / "state" / "resolved.json")


def learned(resolver: Resolver, command: Command) -> Command | None:
    """Run a command as configured, let it be learned, and return what it is resolved to."""
    with running(command) as server:
        resolver.record(command, server.pid)
    return resolver.resolve(command)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return npm_package(tmp_path / "looks")


def test_npx_is_resolved_to_node_and_the_script(resolver, package):
    command = npx_of(package, "--flag", "a value", "")
    resolved = learned(resolver, command)
    assert resolved.argv[0] == os.path.realpath(third_party.node())
    assert resolved.argv[1].endswith("/node_modules/.bin/looks")
    with running(command) as behind, running(resolved) as direct:
        seen, expected = direct.look(), behind.look()
    assert seen["argv"] == expected["argv"] == ["--flag", "a value", ""]
    assert seen["pid"] == direct.pid and expected["pid"] != behind.pid  # no launcher stays


def test_programs_of_the_package_s_dependencies_are_found_as_behind_npx(resolver, package):
    command = npx_of(package)
    resolved = learned(resolver, command)
    with running(command) as behind, running(resolved) as direct:
        seen, expected = direct.look()["env"], behind.look()["env"]
    assert seen["PATH"].split(":")[0] == expected["PATH"].split(":")[0] == os.path.dirname(resolved.argv[1])
    assert seen["PATH"].endswith(command.env["PATH"])
    for name in ("npm_execpath", "npm_node_execpath", "npm_config_user_agent"):
        assert seen[name] == expected[name]


def test_npx_is_understood_when_the_package_is_an_option(resolver, package):
    command = npx_of(package)
    command = dataclasses.replace(command, argv=[*command.argv[:2], "--offline", "-p", str(package), "looks", "x"])
    with running(learned(resolver, command)) as direct:
        assert direct.look()["argv"] == ["x"]


def test_a_server_from_npm_is_resolved(resolver, tmp_path):
    base = ["--prefix", str(third_party.npm_prefix()), "--no-install", "--offline"]
    command = Command(
        [third_party.npx(), *base, "mcp-server-filesystem", str(tmp_path)], variables(tmp_path), str(tmp_path)
    )
    assert learned(resolver, command).argv[1:] == [
        str(third_party.npm_prefix() / "node_modules" / ".bin" / "mcp-server-filesystem"),
        str(tmp_path),
    ]


def test_uvx_is_resolved_to_the_python_of_its_environment(resolver, tmp_path):
    argv = [uvx(), "--offline", "--python", PYTHON, "--from", str(wheel(tmp_path)), "looks", "--flag", "a value"]
    command = Command(argv, variables(tmp_path), str(tmp_path))
    resolved = learned(resolver, command)
    with running(command) as behind, running(resolved) as direct:
        seen, expected = direct.look(), behind.look()
    assert seen["pid"] == direct.pid and expected["pid"] != behind.pid
    assert [seen[key] for key in ("argv", "prefix")] == [expected[key] for key in ("argv", "prefix")]
    assert [seen["env"][name] for name in ("PATH", "UV")] == [expected["env"][name] for name in ("PATH", "UV")]


# --- what is remembered, and for how long -----------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return launcher_of(tmp_path)


def with_arguments(command: Command, *arguments: str) -> Command:
    """The same launcher and package, other arguments for the server."""
    return dataclasses.replace(command, argv=[*command.argv[:3], *arguments])


def test_another_hub_knows_it_too_and_adds_each_start_s_own_arguments(resolver, command):
    learned(resolver, command)
    resolved = Resolver(resolver._path).resolve(with_arguments(command, "two", "three"))
    assert resolved.argv == [PYTHON, "-S", f"{command.cwd}/looks.py", "two", "three"]


def test_neither_arguments_nor_variables_of_a_server_are_written(resolver, tmp_path):
    command = launcher_of(tmp_path, 'PYTHON -S SCRIPT "$3"; exit')
    command = with_arguments(command, "--token=sesame-open")
    assert learned(resolver, dataclasses.replace(command, env={**command.env, "API_KEY": "sesame-shut"})) is not None
    assert "sesame" not in resolver._path.read_text()
    assert resolver._path.stat().st_mode & 0o777 == 0o600


def test_a_command_elsewhere_or_in_another_environment_is_another_command(resolver, command, tmp_path):
    (tmp_path / "package.json").unlink()
    assert learned(resolver, command) is not None
    (tmp_path / "project" / "node_modules").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    others = ({"cwd": str(tmp_path / "project")}, {"env": command.env | {"npm_config_cache": "/x"}})
    for other in (*others, {"argv": [command.argv[0], "-y", "other", "x"]}):
        assert resolver.resolve(dataclasses.replace(command, **other)) is None
    assert resolver.resolve(dataclasses.replace(command, cwd=str(tmp_path / "plain"))) is not None


def edit(script: Path) -> None:
    script.write_text(script.read_text() + "\n")


def install_another_version(script: Path) -> None:
    """The script alike to the byte and the second, as npm may install it."""
    (script.parent / "package.json").write_text('{"version": "1.0.10"}')


@pytest.mark.parametrize("change", [edit, install_another_version, Path.unlink])
def test_what_has_changed_on_disk_is_left_to_the_launcher(resolver, command, tmp_path, change):
    assert learned(resolver, command) is not None
    change(tmp_path / "looks.py")
    assert resolver.resolve(command) is None


@pytest.mark.parametrize(("package", "is_known"), [("looks", False), ("looks@latest", False), ("looks@1.2.3", True)])
def test_only_an_exact_version_is_not_asked_for_again_after_a_day(resolver, command, monkeypatch, package, is_known):
    command = dataclasses.replace(command, argv=[*command.argv[:2], package, "x"])
    assert learned(resolver, command) is not None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + UNPINNED_S + 1)
    assert (resolver.resolve(command) is not None) == is_known
    assert learned(resolver, command) is not None


def test_what_did_not_come_up_is_forgotten_and_given_up_for_a_day_when_it_fails_again(resolver, command, monkeypatch):
    for _ in range(MOST_FAILURES):
        assert learned(resolver, command) is not None
        resolver.record_failure(command)
        assert resolver.resolve(command) is None
    assert learned(resolver, command) is None
    assert learned(Resolver(resolver._path), command) is None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + FAILED_S + 1)
    assert learned(resolver, command) is not None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 0, "commands": {}}', b'{"format": 1, "commands": []}'])
def test_a_file_of_another_kind_is_ignored_and_then_replaced(resolver, command, content):
    resolver._path.parent.mkdir()
    resolver._path.write_bytes(content)
    assert resolver.resolve(command) is None
    assert learned(resolver, command) is not None
    assert Resolver(resolver._path).resolve(command) is not None


@pytest.mark.parametrize("change", [{"argv": [1]}, {"surplus": 1}, {"at": "now"}, {"path": None}, {"files": {"/x": 1}}])
def test_an_entry_of_another_kind_is_not_executed(resolver, command, change):
    learned(resolver, command)
    document = json.loads(resolver._path.read_text())
    (key,) = document["commands"]
    document["commands"][key] |= change
    resolver._path.write_text(json.dumps(document))
    assert Resolver(resolver._path).resolve(command) is None


def test_a_file_that_others_may_write_is_not_executed_from(resolver, command):
    learned(resolver, command)
    resolver._path.chmod(0o622)
    assert Resolver(resolver._path).resolve(command) is None


def test_the_oldest_commands_make_room(resolver, command, monkeypatch):
    monkeypatch.setattr(resolve, "MAX_ENTRIES", 2)
    packages = [dataclasses.replace(command, argv=[*command.argv[:2], name, "x"]) for name in ("a", "b", "c")]
    for package in packages:
        assert learned(resolver, package) is not None
    assert [Resolver(resolver._path).resolve(package) is not None for package in packages] == [False, True, True]


def test_without_a_place_to_write_it_lasts_for_this_hub(command, tmp_path):
    assert learned(Resolver(tmp_path / "npx" / "resolved.json"), command) is not None  # a file is no folder


# --- what is in doubt is left to the launcher -------------------------------------------------------------------------

RENAMED = """PYTHON -c 'import os; os.execv("PYTHON", ["other", "-S", "SCRIPT", "x"])'; exit"""


@pytest.mark.parametrize(
    ("body", "is_resolved"),
    [
        ("PYTHON -S SCRIPT x; exit", True),
        ("sh -c 'PYTHON -S SCRIPT x; exit'; exit", True),
        ("PATH=FOLDER:/nowhere:$PATH PYTHON -S SCRIPT x; exit", True),
        ("PYTHON -S SCRIPT x more; exit", False),
        ("PYTHON -S SCRIPT; exit", False),
        ("PATH=$PATH:/behind PYTHON -S SCRIPT x; exit", False),
        ("cd / && PYTHON -S SCRIPT x; exit", False),
        ("sleep 100 & PYTHON -S SCRIPT x; kill $!; wait; exit", False),
        ("PYTHON -S looks.py x; exit", False),
        (RENAMED, False),
    ],
)
def test_only_a_tree_without_doubt_is_resolved(resolver, tmp_path, body, is_resolved):
    resolved = learned(resolver, launcher_of(tmp_path, body))
    assert (resolved is not None) == is_resolved
    if resolved is not None:
        assert resolved.argv == [PYTHON, "-S", str(tmp_path / "looks.py"), "x"]
        assert resolved.env["PATH"].startswith(f"{tmp_path}:") == ("FOLDER" in body)
        assert "/nowhere" not in resolved.env["PATH"]


def test_a_server_that_is_gone_or_no_launcher_s_teaches_nothing(resolver, command):
    with running(command) as server:
        pass
    resolver.record(command, server.pid)
    resolver.record(command, None)
    plain = Command(["sleep", "1"], {})
    resolver.record(plain, os.getpid())
    resolver.record_failure(plain)
    assert resolver.resolve(command) is resolver.resolve(plain) is None
    assert not resolver._path.exists()
