"""`toolhub llm-command`: print how a model server is started."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from toolhub.cli.shared import console, print_json
from toolhub_agent.profiles import LaunchCommand, Profile, command_lines, front_url, load_profile, profile_names


def run(name: str | None, *, overrides: list[str], as_json: bool) -> None:
    """Print a profile's commands as a shell script with comments; without a name, which profiles there are."""
    if name is None:
        _list(as_json)
        return
    profile = load_profile(name, overrides)
    lines = command_lines(profile)
    if as_json:
        print_json(_as_data(name, profile, lines))
    else:
        sys.stdout.write(_script(profile, lines))


def _list(as_json: bool) -> None:
    profiles = {name: load_profile(name) for name in profile_names()}
    if as_json:
        print_json([{"profile": name, "description": profile.description} for name, profile in profiles.items()])
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("profile", no_wrap=True)
    table.add_column("what it starts", overflow="fold")
    for name, profile in profiles.items():
        table.add_row(escape(name), escape(profile.description))
    console().print(table)


def _script(profile: Profile, lines: list[LaunchCommand]) -> str:
    head = _comment(profile.description, f"Flags checked against: {profile.checked}")
    commands = [f"{_comment(f'{line.title} (on {line.node})', *line.notes)}\n{line.pretty()}" for line in lines]
    return "\n\n".join([head, *commands, _comment(*_afterwards(profile))]) + "\n"


def _comment(*sentences: str) -> str:
    return "\n".join(f"# {' '.join(sentence.split())}" for sentence in sentences)


def _afterwards(profile: Profile) -> list[str]:
    url = front_url(profile)
    hints = ", hints: {use_pin_scheduler: true}" if any(server.pins for server in profile.servers.values()) else ""
    said = [f"When it is up: toolhub doctor --llm {url}", f"In the hub's config: llm: {{endpoints: [{url}]{hints}}}"]
    if any(not server.is_local for server in profile.servers.values()):
        said.append("No key is asked for: let only your own machines reach these ports.")
    return said


def _as_data(name: str, profile: Profile, lines: list[LaunchCommand]) -> dict[str, Any]:
    commands = [{**asdict(line), "env": dict(line.env), "shell": line.shell()} for line in lines]
    return {
        "profile": name,
        "description": profile.description,
        "checked": profile.checked,
        "model": profile.model,
        "url": front_url(profile),
        "commands": commands,
    }
