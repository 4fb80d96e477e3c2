"""LangGraph's recipe, with the real packages in an environment that has none of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_environments import AGENTS, agent_environment, copied_environment
from llm_stand_in.answers import called, said
from llm_stand_in.model_server import ModelServer
from printed_page import PrintedPage, printed_page
from served_hub import ServedHub

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bin() -> Path:
    return agent_environment("langgraph") / "bin"


@pytest.fixture
def page(tmp_path: Path) -> PrintedPage:
    return printed_page("langgraph", tmp_path)


@pytest.fixture
def hub(page: PrintedPage, hub_bin: Path) -> Iterator[ServedHub]:
    with page.hub(hub_bin=hub_bin) as hub:
        yield hub


def test_the_packages_that_the_page_installs_are_those_of_the_test(page: PrintedPage) -> None:
    _, _, *named = page.command("pip install langgraph").split()
    assert named == [pin.partition("==")[0] for pin in AGENTS["langgraph"].pins]


def test_the_calls_of_one_task_meet_the_same_servers_until_it_is_ended(
    page: PrintedPage, hub: ServedHub, bin: Path, model: ModelServer
) -> None:
    page.write("agent.py")
    model.script(
        called(("execute", {"sql": "CREATE TABLE found (title TEXT)"})),
        called(("execute", {"sql": "INSERT INTO found VALUES ('Otters')"})),
        called(("query", {"sql": "SELECT * FROM found"})),
        said("There are otters."),
    )
    command = page.command("python agent.py")
    printed = page.run(command, bin, OPENAI_BASE_URL=model.url, OPENAI_API_KEY="none", MODEL=model.model)
    assert printed == "There are otters.\n"
    assert "Otters" in str(model.chats[-1].body["messages"][-1])
    with hub.client() as http:
        assert [task["id"] for task in http.get("/v1/tasks").json()["tasks"]] == ["paper-17"]
        page.run(page.command("curl"))
        assert http.get("/v1/tasks").json()["tasks"] == []


def test_one_session_is_one_task_that_ends_with_it(page: PrintedPage, hub: ServedHub, bin: Path) -> None:
    page.write("one_session.py")
    assert "Otters" in page.run("python one_session.py", bin)
    with hub.client() as http:
        assert http.get("/v1/tasks").json()["tasks"] == []


def test_toolhubs_client_gives_langchain_tools_that_a_model_may_call_wrongly(
    page: PrintedPage, hub: ServedHub, bin: Path, model: ModelServer, tmp_path: Path, wheel: Path
) -> None:
    page.write("client.py")
    model.script(
        called(("notes__execute", {"sql": "CREATE TABLE found (title TEXT)"})),
        called(("notes__query", {"sql": "SELECT * FROM lost"})),
        called(("notes__execute", {"sql": "INSERT INTO found VALUES ('Otters')"})),
        called(("notes__query", {"sql": "SELECT * FROM found"})),
        said("There are otters."),
    )
    with copied_environment("langgraph", tmp_path) as copy:
        page.run(page.command("pip install toolhub-runtime").replace("toolhub-runtime", str(wheel)), copy / "bin")
        settings = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "MODEL": model.model}
        assert page.run("python client.py", copy / "bin", **settings) == "There are otters.\n"
    answers = [str(chat.body["messages"][-1]["content"]) for chat in model.chats[1:]]
    assert "no such table: lost" in answers[1] and "Otters" in answers[3]


def test_the_measurement_prints_both_ways(page: PrintedPage, hub: ServedHub, bin: Path, hub_bin: Path) -> None:
    page.write("measure.py")
    direct, kept = page.run("python measure.py", bin, hub_bin).splitlines()
    print(f"langchain-mcp-adapters, one call of mcp-server-time: {direct}, {kept}")
    assert direct.startswith("started for every call: ") and kept.startswith("kept by the hub: ")
