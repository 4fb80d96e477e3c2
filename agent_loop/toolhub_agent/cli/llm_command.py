"""`toolhub llm-command`: print how a model server is started, also with speculative decoding."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from toolhub.cli.shared import console, print_json
from toolhub.errors import ConfigError
from toolhub_agent.decoding import load_recipes
from toolhub_agent.profiles import AppliedRecipe, Profile, is_loopback, load_profile, profile_names


def run(name: str | None, *, overrides: list[str], decode: str | None, as_json: bool) -> None:
    """Print a profile's commands as a shell script with comments; without a name, list profiles and recipes.

    decode: a recipe for speculative decoding. Raises ConfigError.
    """
    if name is None:
        if decode is not None:
            raise ConfigError("--decode needs a profile: toolhub llm-command vllm --decode ngram")
        _list(as_json)
        return
    profile = load_profile(name, overrides, decode)
    if as_json:
        print_json(_as_data(name, profile))
    else:
        sys.stdout.write(_script(profile))


def _list(as_json: bool) -> None:
    profiles = {name: load_profile(name) for name in profile_names()}
    recipes = load_recipes()
    if as_json:
        print_json(
            {
                "profiles": [{"profile": name, "description": each.description} for name, each in profiles.items()],
                "decode": [{"recipe": name, **recipe.model_dump()} for name, recipe in recipes.items()],
            }
        )
        return
    out = console()
    out.print(_table("profile", "what it starts", {name: each.description for name, each in profiles.items()}))
    uses = {
        name: f"{recipe.description}. Use it where {recipe.use_when}. For {' and '.join(recipe.engines)}."
        for name, recipe in recipes.items()
    }
    out.print("\nSpeculative decoding: toolhub llm-command PROFILE --decode RECIPE\n")
    out.print(_table("recipe", "what it does", uses))


def _table(first: str, second: str, rows: Mapping[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    table.add_column(second, overflow="fold")
    for name, text in rows.items():
        table.add_row(escape(name), escape(text))
    return table


def _script(profile: Profile) -> str:
    head = _comment(profile.description, f"Flags checked against: {profile.checked}")
    if profile.decoding is not None:
        head += f"\n#\n{_comment(*_about(profile.decoding))}"
    commands = [f"{_comment(f'{one.name} (on {one.node})', *one.notes)}\n{one.pretty()}" for one in profile.commands]
    return "\n\n".join([head, *commands, _comment(*_afterwards(profile))]) + "\n"


def _about(recipe: AppliedRecipe) -> list[str]:
    """What to know before the recipe is used."""
    engine = recipe.for_engine
    lines = [
        f"Speculative decoding, recipe {recipe.name}: {recipe.description}.",
        f"Use it where {recipe.use_when}.",
        f"Its flags checked against: {engine.checked}",
    ]
    if engine.needs:
        lines.append(f"It needs: {engine.needs}")
    lines.append("Known hazards for tool calls (#: an issue of the engine's repository):")
    return [*lines, *(f"- {hazard}" for hazard in engine.hazards)]


def _comment(*sentences: str) -> str:
    return "\n".join(f"# {' '.join(sentence.split())}" for sentence in sentences)


def _afterwards(profile: Profile) -> list[str]:
    hints = ", hints: {use_pin_scheduler: true}" if any(one.has_pins for one in profile.commands) else ""
    against = " --against URL" if profile.decoding is not None else ""
    lines = [
        f"When it is up: toolhub doctor --llm {profile.url}{against}",
        f"In the hub's config: llm: {{endpoints: [{profile.url}]{hints}}}",
    ]
    if against:
        lines.insert(1, "URL: the same server without --decode. The doctor refuses a recipe that loses tool calls.")
    if not all(is_loopback(one.node) for one in profile.commands):
        lines.append("The servers ask for no key: let only your own machines reach these ports.")
    return lines


def _as_data(name: str, profile: Profile) -> dict[str, Any]:
    recipe = profile.decoding
    commands = [{**asdict(one), "env": dict(one.env), "shell": one.shell()} for one in profile.commands]
    return {
        "profile": name,
        "description": profile.description,
        "checked": profile.checked,
        "model": profile.model,
        "url": profile.url,
        "commands": commands,
        "decode": None if recipe is None else {**asdict(recipe), "for_engine": recipe.for_engine.model_dump()},
    }
