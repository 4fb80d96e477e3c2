"""`toolhub llm-command`: print how a model server is started."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from toolhub.cli.shared import console, print_json
from toolhub_agent.profiles import Profile, is_loopback, load_profile, profile_names


def run(name: str | None, *, overrides: list[str], as_json: bool) -> None:
    """Print a profile's commands as a shell script with comments; without a name, list the profiles."""
    if name is None:
        _list(as_json)
        return
    profile = load_profile(name, overrides)
    if as_json:
        print_json(_as_data(name, profile))
    else:
        sys.stdout.write(_script(profile))


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


def _script(profile: Profile) -> str:
    head = _comment(profile.description, f"Flags checked against: {profile.checked}")
    commands = [f"{_comment(f'{one.name} (on {one.node})', *one.notes)}\n{one.pretty()}" for one in profile.commands]
    return "\n\n".join([head, *commands, _comment(*_afterwards(profile))]) + "\n"


def _comment(*sentences: str) -> str:
    return "\n".join(f"# {' '.join(sentence.split())}" for sentence in sentences)


def _afterwards(profile: Profile) -> list[str]:
    hints = ", hints: {use_pin_scheduler: true}" if any(one.has_pins for one in profile.commands) else ""
    lines = [
        f"When it is up: toolhub doctor --llm {profile.url}",
        f"In the hub's config: llm: {{endpoints: [{profile.url}]{hints}}}",
    ]
    if not all(is_loopback(one.node) for one in profile.commands):
        lines.append("The servers ask for no key: let only your own machines reach these ports.")
    return lines


def _as_data(name: str, profile: Profile) -> dict[str, Any]:
    commands = [{**asdict(one), "env": dict(one.env), "shell": one.shell()} for one in profile.commands]
    return {
        "profile": name,
        "description": profile.description,
        "checked": profile.checked,
        "model": profile.model,
        "url": profile.url,
        "commands": commands,
    }
