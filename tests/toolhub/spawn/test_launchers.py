"""Command lines of npx and uvx, taken apart only where every word is understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolhub.spawn.launchers.command_lines import is_launcher, parse_launcher_command

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("line", "head", "arguments"),
    [
        ("npx pkg", "npx pkg", ""),
        ("npx -y pkg --flag x", "npx -y pkg", "--flag x"),
        ("/usr/bin/npx --yes @a/pkg@1.2.3 -y", "/usr/bin/npx --yes @a/pkg@1.2.3", "-y"),
        ("npx -y -p pkg bin a", "npx -y -p pkg bin", "a"),
        ("npx --package=pkg -p other bin a", "npx --package=pkg -p other bin", "a"),
        ("npx -y -- pkg -- a", "npx -y -- pkg", "-- a"),
        ("npx --prefix /p --no-install --offline bin", "npx --prefix /p --no-install --offline bin", ""),
        ("uvx pkg a", "uvx pkg", "a"),
        ("uvx --from pkg==1.2 --with x bin a", "uvx --from pkg==1.2 --with x bin", "a"),
        ("uvx --python=3.12 -q pkg", "uvx --python=3.12 -q pkg", ""),
        ("uv tool run --offline pkg a", "uv tool run --offline pkg", "a"),
    ],
)
def test_the_server_s_own_arguments_begin_after_its_name(line, head, arguments):
    launch = parse_launcher_command(line.split())
    assert (launch.head, launch.arguments) == (tuple(head.split()), tuple(arguments.split()))


@pytest.mark.parametrize(
    "line",
    [
        "node server.js",
        "python -m pkg",
        "bunx pkg",
        "pnpm dlx pkg",
        "npm exec pkg",
        "uv run server.py",
        "npx",
        "npx -y",
        "npx -y --",
        "npx -p",
        "npx -p pkg",
        "npx -c pkg",
        "npx --call=pkg",
        "npx --yes=true pkg",
        "npx --unheard-of pkg",
        "npx --prefix relative pkg",
        "uvx --env-file .env pkg",
        "uvx --no-cache pkg",
        "uvx --refresh pkg",
        "uv tool install pkg",
    ],
)
def test_what_is_no_launcher_or_not_understood_is_left_alone(line):
    assert parse_launcher_command(line.split()) is None


@pytest.mark.parametrize(
    ("line", "is_pinned"),
    [
        ("npx pkg@1.2.3", True),
        ("npx @a/pkg@1.2.3-beta.1", True),
        ("npx -p pkg@1.2.3 bin", True),
        ("npx -p pkg@1.2.3 -p other bin", False),
        ("npx pkg", False),
        ("npx @a/pkg", False),
        ("npx pkg@latest", False),
        ("npx pkg@^1.2.3", False),
        ("npx pkg@1", False),
        ("npx ./pkg@1.2.3", False),
        ("uvx pkg==1.2.3", True),
        ("uvx pkg[cli]==2026.1", True),
        ("uvx pkg@1.2.3", True),
        ("uvx --from pkg==1.2.3 bin", True),
        ("uvx --from=pkg==1.2.3 --with x==1 bin", True),
        ("uvx --from pkg==1.2.3 --with x bin", False),
        ("uvx --with x==1 pkg", False),
        ("uvx --with x==1 pkg@1.0", True),
        ("uvx pkg", False),
        ("uvx pkg@latest", False),
        ("uvx pkg==1.*", False),
        ("uvx --from pkg>=1.2 bin", False),
        ("uvx --from git+https://host/pkg@1.2.3 bin", False),
    ],
)
def test_only_exact_versions_of_all_packages_are_pinned(line, is_pinned):
    assert parse_launcher_command(line.split()).is_pinned == is_pinned


@pytest.mark.parametrize(
    ("line", "mark", "anchor"),
    [
        ("npx pkg", "", ""),
        ("npx @scope/pkg", "", ""),
        ("npx /abs/pkg", "", ""),
        ("npx ./pkg", "", "a/b"),
        ("npx -p sub/pkg bin", "", "a/b"),
        ("npx pkg", "a/package.json", "a"),
        ("npx pkg", "a/b/.npmrc", "a/b"),
        ("npx pkg", "a/pyproject.toml", ""),
        ("uvx pkg", "a/pyproject.toml", "a"),
        ("uvx pkg ./its/own", "", ""),
    ],
)
def test_a_command_means_the_same_in_every_folder_but_for_projects_and_paths(tmp_path: Path, line, mark, anchor):
    cwd = tmp_path / "a" / "b"
    cwd.mkdir(parents=True)
    if mark:
        (tmp_path / mark).touch()
    assert parse_launcher_command(line.split()).project_folder(str(cwd)) == (str(tmp_path / anchor) if anchor else "")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["npm exec pkg --flag", "", ""], True),
        (["node", "/usr/lib/node_modules/npm/bin/npx-cli.js", "-y", "pkg"], True),
        (["/bin/sh", "/opt/shims/npx", "-y", "pkg"], True),
        (["sh", "-c", "'pkg' --flag"], True),
        (["/x/uv", "tool", "uvx", "pkg"], True),
        (["node", "/x/.bin/pkg"], False),
        (["/bin/sh", "/x/.bin/pkg"], False),
        (["python", "/x/bin/pkg", "npx"], False),
        ([], False),
    ],
)
def test_launchers_are_told_from_what_they_launch(argv, expected):
    assert is_launcher(argv) == expected
