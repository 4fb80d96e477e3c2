"""Pydantic AI's recipe, with the real package in an environment that has none of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_environments import AGENTS, agent_environment
from llm_stand_in.answers import called, said
from llm_stand_in.model_server import ModelServer
from printed_page import printed_page

pytestmark = pytest.mark.slow


def test_the_agent_reads_errors_and_two_runs_of_a_task_meet_the_same_servers(
    tmp_path: Path, hub_bin: Path, model: ModelServer
) -> None:
    page = printed_page("pydantic-ai", tmp_path)
    bin = agent_environment("pydantic-ai") / "bin"
    model.script(
        called(("query", {"sql": "SELECT * FROM lost"})),
        called(("query", {"sql": "SELECT * FROM lost"})),
        called(("query", {"sql": "SELECT * FROM lost"})),
        called(("execute", {"sql": "CREATE TABLE found (title TEXT)"})),
        called(("execute", {"sql": "INSERT INTO found VALUES ('Otters')"})),
        said("It is noted."),
        called(("query", {"sql": "SELECT * FROM found"})),
        said("There are otters."),
    )
    settings = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "MODEL": model.model}
    with page.hub(hub_bin=hub_bin) as hub, hub.client() as http:
        page.write("agent.py")
        assert page.run(page.command("python agent.py"), bin, **settings) == "It is noted.\n"
        assert page.run(page.command("python agent.py"), bin, **settings) == "There are otters.\n"
        assert [task["id"] for task in http.get("/v1/tasks").json()["tasks"]] == ["paper-17"]
        page.run(page.command("curl"))
        assert http.get("/v1/tasks").json()["tasks"] == []
    assert "no such table: lost" in str(model.chats[1].body["messages"][-1])
    assert "Otters" in str(model.chats[-1].body["messages"][-1])


def test_the_package_that_the_page_installs_is_that_of_the_test(tmp_path: Path) -> None:
    (pin,) = AGENTS["pydantic-ai"].pins
    assert f"'{pin.partition('==')[0]}'" in printed_page("pydantic-ai", tmp_path).command("pip install 'pydantic")
