"""Recipes for speculative decoding: flags for an engine, and their known hazards for tool calls.

for name, recipe in load_recipes().items():
    print(name, recipe.description, list(recipe.engines))
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from toolhub.config.problems import did_you_mean
from toolhub.config.section import Section
from toolhub.errors import ConfigError

RecipeEngine = Literal["vllm", "sglang"]
_FILE = Path(__file__).with_name("recipes.yaml")


class EngineRecipe(Section):
    """A recipe for one engine. checked: against which version. needs: what to install first."""

    checked: str
    needs: str = ""
    flags: dict[str, Any]
    hazards: list[str] = Field(min_length=1)


class DecodingRecipe(Section):
    """One method of speculative decoding."""

    description: str
    use_when: str
    engines: dict[RecipeEngine, EngineRecipe] = Field(min_length=1)


@functools.cache
def load_recipes() -> dict[str, DecodingRecipe]:
    """The recipes that come with toolhub, by name."""
    return {name: DecodingRecipe.model_validate(data) for name, data in yaml.safe_load(_FILE.read_text()).items()}


def find_recipe(name: str) -> DecodingRecipe:
    """Raises ConfigError, with near names."""
    recipes = load_recipes()
    if name not in recipes:
        raise ConfigError(f"no recipe {name!r};{did_you_mean(name, list(recipes))} there are: {', '.join(recipes)}")
    return recipes[name]


def engine_of(run: Sequence[str]) -> RecipeEngine | None:
    """The engine that a command starts; None: it starts a router, or an engine without recipes."""
    if "sglang.launch_server" in run:
        return "sglang"
    return "vllm" if "dynamo.vllm" in run or tuple(run[:2]) == ("vllm", "serve") else None
