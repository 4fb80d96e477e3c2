"""Two runs of a recipe's agent, which is told to note something and then to read it."""

from __future__ import annotations

from pathlib import Path

from llm_stand_in.answers import called, said
from llm_stand_in.model_server import ModelServer
from printed_page import PrintedPage

# What the model does in both runs.
NOTES_AND_READS = (
    called(("execute", {"sql": "CREATE TABLE found (title TEXT)"})),
    called(("execute", {"sql": "INSERT INTO found VALUES ('Otters')"})),
    said("It is noted."),
    called(("query", {"sql": "SELECT * FROM found"})),
    said("There are otters."),
)


def settings_of(model: ModelServer) -> dict[str, str]:
    return {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "MODEL": model.model}


def check_two_runs_of_one_task(page: PrintedPage, bin: Path, hub_bin: Path, model: ModelServer) -> None:
    """The second process finds what the first one wrote, and the task ends as the page says."""
    with page.hub(hub_bin=hub_bin) as hub, hub.client() as http:
        page.write("agent.py")
        assert page.run(page.command("python agent.py"), bin, **settings_of(model)) == "It is noted.\n"
        assert page.run(page.command("python agent.py"), bin, **settings_of(model)) == "There are otters.\n"
        assert [task["id"] for task in http.get("/v1/tasks").json()["tasks"]] == ["paper-17"]
        page.run(page.command("curl"))
        assert http.get("/v1/tasks").json()["tasks"] == []
    assert "Otters" in str(model.chats[-1].body["messages"][-1])
