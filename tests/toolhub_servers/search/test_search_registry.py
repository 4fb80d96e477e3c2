"""A search backend is one module and one line in the registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import Field
from toolhub_servers.search import google_search, registry
from toolhub_servers.search.backend import Backend, BackendSettings, SharedSettings
from toolhub_servers.search.model import Hit, Query, Results

from tests.toolhub_servers.search.search_stage import calling, told_json
from toolhub import Hub, parse_config
from toolhub.shared_resources import SharedResources

# --- what the module of a backend has ---------------------------------------------------------------------------------


class ShoutSettings(BackendSettings):
    VARIABLES = {"api_key": "SHOUT_API_KEY"}
    REQUIRED = ("api_key",)

    api_key: str | None = Field(default=None, repr=False)
    mark: str = "!"


class Shout:
    def __init__(self, settings: ShoutSettings) -> None:
        self._mark = settings.mark

    async def search(self, query: Query) -> Results:
        return Results(
            "shout", (Hit(query.q.upper() + self._mark, "https://shout.example/"),), query.parameters("shout")
        )


async def open_shout(own: ShoutSettings, shared: SharedSettings, resources: SharedResources) -> Shout:
    return Shout(own)


SHOUT = Backend("shout", ShoutSettings, open_shout)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line in the registry."""
    monkeypatch.setitem(registry.BACKENDS, "shout", SHOUT)


# --- what follows from it ---------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_registered_backend_answers_a_model_in_a_hub(tmp_path: Path) -> None:
    options = {"backends": ["shout"], "shout": {"api_key": "k", "mark": "?"}}
    config = parse_config(
        {
            "hub": {"state_dir": str(tmp_path)},
            "servers": {"search": {"builtin": "search_and_scrape_webpage", "options": options}},
        }
    )
    async with Hub(config) as hub, hub.task("one") as task:
        result = await task.call("search", "google_search", {"q": "hello"})
    assert json.loads(str(result.text))["organic"][0]["title"] == "HELLO?"


@pytest.mark.anyio
async def test_a_registered_backend_takes_its_key_from_its_environment_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOUT_API_KEY", "k")
    async with calling(google_search.create_from_options(["shout"], None)) as client:
        answer = await told_json(client, "google_search", q="hello")
    assert answer["organic"][0]["title"] == "HELLO!"


def test_a_required_option_that_is_missing_is_named_with_its_variable() -> None:
    with pytest.raises(ValueError, match=r"'shout' needs the option shout\.api_key: .* variable SHOUT_API_KEY "):
        registry.read_settings({"backends": ["shout"]})


def test_an_unknown_option_of_a_registered_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"option shout\.colour"):
        registry.read_settings({"backends": ["shout"], "shout": {"api_key": "k", "colour": "red"}})


def test_the_names_of_all_backends_are_told_for_an_unknown_one() -> None:
    with pytest.raises(ValueError, match="'local' or 'shout'"):
        registry.read_settings({"backends": ["altavista"]})
