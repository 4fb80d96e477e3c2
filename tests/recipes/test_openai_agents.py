"""The recipe of the OpenAI Agents SDK, with the real package in an environment that has none of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_environments import agent_environment
from llm_stand_in.answers import called, said
from llm_stand_in.model_server import ModelServer
from printed_page import PrintedPage, printed_page
from recipe_runs import NOTES_AND_READS, check_two_runs_of_one_task, settings_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bin() -> Path:
    return agent_environment("openai-agents") / "bin"


@pytest.fixture
def page(tmp_path: Path) -> PrintedPage:
    return printed_page("openai-agents", tmp_path)


def test_the_agents_calls_meet_the_task_of_its_header(
    page: PrintedPage, bin: Path, hub_bin: Path, model: ModelServer
) -> None:
    model.script(*NOTES_AND_READS)
    check_two_runs_of_one_task(page, bin, hub_bin, model)


def test_the_agent_starts_a_hub_of_its_own_over_stdio(
    page: PrintedPage, bin: Path, hub_bin: Path, model: ModelServer
) -> None:
    page.write("hub.yaml", "agent_stdio.py")
    model.script(called(("get_current_time", {"timezone": "UTC"})), said("It is late."))
    assert page.run("python agent_stdio.py", bin, hub_bin, **settings_of(model)) == "It is late.\n"
    assert '"timezone": "UTC"' in str(model.chats[-1].body["messages"][-1]["content"])
