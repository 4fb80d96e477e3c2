"""The recipe of a loop on the OpenAI API, with the real SDK beside the thin client."""

from __future__ import annotations

from pathlib import Path

import pytest
from llm_stand_in.answers import called, said
from llm_stand_in.model_server import ModelServer
from printed_page import printed_page

pytestmark = pytest.mark.slow


def test_the_loop_calls_several_tools_and_leaves_no_task(
    tmp_path: Path, hub_bin: Path, model: ModelServer, wheel: Path, openai_environment: Path
) -> None:
    page = printed_page("openai-loop", tmp_path)
    model.script(
        called(
            ("time__get_current_time", {"timezone": "UTC"}),
            ("notes__execute", {"sql": "CREATE TABLE found (hour TEXT)"}),
            ("notes__execute", {"sql": "INSERT INTO found VALUES ('noon')"}),
            ("notes__query", {"sql": "SELECT * FROM found"}),
        ),
        said("It is noon."),
    )
    with page.hub(hub_bin=hub_bin) as hub:
        install = page.command("pip install openai")
        page.run(install.replace(" toolhub-runtime", f" {wheel}"), openai_environment / "bin")
        page.write("loop.py")
        settings = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none", "MODEL": model.model}
        assert page.run(page.command("python loop.py"), openai_environment / "bin", **settings) == "It is noon.\n"
        with hub.client() as http:
            assert http.get("/v1/tasks").json()["tasks"] == []
    first, second = model.chats
    names = [tool["function"]["name"] for tool in first.body["tools"]]
    assert names == [
        *(f"time__{name}" for name in ("get_current_time", "convert_time")),
        *(f"notes__{name}" for name in ("query", "execute", "tables")),
    ]
    asked, *answers = second.body["messages"][-5:]
    assert [answer["tool_call_id"] for answer in answers] == [call["id"] for call in asked["tool_calls"]]
    assert '"timezone": "UTC"' in answers[0]["content"] and "noon" in answers[3]["content"]
