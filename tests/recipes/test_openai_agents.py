"""The recipe of the OpenAI Agents SDK, with the real package in an environment that has none of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_environments import agent_environment
from llm_stand_in.answers import called, said
from llm_stand_in.model_server import ModelServer
from printed_page import PrintedPage, printed_page

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
    model.script(
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
        # A second process of the same task finds what the first one wrote.
        assert page.run(page.command("python agent.py"), bin, **settings) == "There are otters.\n"
        assert "Otters" in str(model.chats[-1].body["messages"][-1])
        assert [task["id"] for task in http.get("/v1/tasks").json()["tasks"]] == ["paper-17"]
        page.run(page.command("curl"))
        assert http.get("/v1/tasks").json()["tasks"] == []


def test_the_agent_starts_a_hub_of_its_own_over_stdio(
    page: PrintedPage, bin: Path, hub_bin: Path, model: ModelServer
) -> None:
    page.write("hub.yaml", "agent_stdio.py")
    model.script(called(("get_current_time", {"timezone": "UTC"})), said("It is late."))
    settings = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "MODEL": model.model}
    assert page.run("python agent_stdio.py", bin, hub_bin, **settings) == "It is late.\n"
    assert '"timezone": "UTC"' in str(model.chats[-1].body["messages"][-1]["content"])
