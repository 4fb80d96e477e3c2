"""Pydantic AI's recipe, with the real package in an environment that has none of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_environments import AGENTS, agent_environment
from llm_stand_in.answers import called
from llm_stand_in.model_server import ModelServer
from printed_page import printed_page
from recipe_runs import NOTES_AND_READS, check_two_runs_of_one_task

pytestmark = pytest.mark.slow


def test_the_agent_reads_errors_and_two_runs_of_a_task_meet_the_same_servers(
    tmp_path: Path, hub_bin: Path, model: ModelServer
) -> None:
    page = printed_page("pydantic-ai", tmp_path)
    bin = agent_environment("pydantic-ai") / "bin"
    model.script(*3 * [called(("query", {"sql": "SELECT * FROM lost"}))], *NOTES_AND_READS)
    check_two_runs_of_one_task(page, bin, hub_bin, model)
    assert "no such table: lost" in str(model.chats[1].body["messages"][-1])


def test_the_package_that_the_page_installs_is_that_of_the_test(tmp_path: Path) -> None:
    (pin,) = AGENTS["pydantic-ai"].pins
    assert f"'{pin.partition('==')[0]}'" in printed_page("pydantic-ai", tmp_path).command("pip install 'pydantic")
