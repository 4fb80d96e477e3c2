"""An agent takes a model server's address and tools, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest
from llm_stand_in.answers import said
from llm_stand_in.model_server import ModelServer
from toolhub_agent import Agent

from tests.toolhub_agent.loop_stage import NotingTools, search
from toolhub import Hub
from toolhub.config import parse_config

pytestmark = pytest.mark.anyio
README = Path(__file__).parents[2] / "agent_loop" / "README.md"
CLOCK = {"builtin": "clock"}


def asks_then_answers(server: ModelServer) -> None:
    server.script(said(search("otters")), said(r"They swim: \boxed{otters}"))


async def test_an_address_and_tools_are_enough(server: ModelServer) -> None:
    asks_then_answers(server)
    tools = NotingTools()
    with anyio.fail_after(30):
        result = await Agent(llm=server.url, tools=tools).run("What swims?")
    assert (result.status, result.answer, result.log) == ("success", "otters", None)
    assert tools.calls == [("search", "google_search", {"q": "otters"})]


async def test_the_address_may_lack_the_version(server: ModelServer) -> None:
    server.usual = lambda _: said(r"\boxed{yes}")
    with anyio.fail_after(30):
        assert (await Agent(llm=server.url.removesuffix("/v1"), tools=NotingTools()).run("?")).answer == "yes"


async def test_a_task_of_a_hub_is_a_source_of_tools(server: ModelServer) -> None:
    server.usual = lambda _: said(r"\boxed{noon}")
    with anyio.fail_after(60):
        async with Hub(parse_config({"servers": {"clock": CLOCK}}, environ={})) as hub, hub.task("t1") as task:
            assert (await Agent(llm=server.url, tools=task).run("What time is it?")).answer == "noon"
    assert "## Server name: clock" in server.chats[0].body["messages"][0]["content"]


async def test_two_tasks_in_a_row_each_open_and_close_their_client(server: ModelServer) -> None:
    server.usual = lambda _: said(r"\boxed{yes}")
    agent = Agent(llm=server.url, tools=NotingTools())
    with anyio.fail_after(30):
        assert [(await agent.run(question)).answer for question in ("A?", "B?")] == ["yes", "yes"]


async def test_the_readme_s_example_runs_as_printed(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = [text for text in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "# agent.py" in text]
    assert len(example.splitlines()) <= 16
    server.usual = lambda _: said(r"\boxed{noon}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub.yaml").write_text("servers:\n  clock: {builtin: clock}\n")
    code = example.replace("http://127.0.0.1:8000/v1", server.url).replace("asyncio.run(main())\n", "")
    names: dict[str, object] = {}
    exec(compile(code, "agent.py", "exec"), names)
    with anyio.fail_after(60):
        await names["main"]()  # type: ignore[operator]
    assert capsys.readouterr().out == "noon\n"
