"""MiroThinker's recipe, with the packages of its lock and a small program of the same layout as its agent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from agent_environments import copied_environment
from llm_stand_in.answers import said
from llm_stand_in.model_server import ModelServer
from printed_page import MODEL_URL, PROGRAM_ENDS_WITHIN_S, PrintedPage, printed_page
from served_hub import eventually

pytestmark = pytest.mark.slow

# Only the line that imports the manager is MiroThinker's. The servers of these parameters cannot be started.
PIPELINE = """
import os
import sys

from mcp import StdioServerParameters
from miroflow_tools.manager import ToolManager

THEIRS = ("search_and_scrape_webpage", "jina_scrape_llm_summary", "tool-python")


def make_manager():
    missing = StdioServerParameters(
        command=sys.executable,
        args=["-m", "miroflow_tools.no_such_server"],
        env={name: os.environ[name] for name in ("E2B_API_KEY", "TENCENTCLOUD_SECRET_ID")},
    )
    own = StdioServerParameters(command=os.environ["OWN_SERVER"])
    return ToolManager([*({"name": name, "params": missing} for name in THEIRS), {"name": "own", "params": own}])
"""
MAIN = """
import asyncio
import sys

import openai
from src.core.pipeline import make_manager

MODEL = next(word.removeprefix("llm.base_url=") for word in sys.argv if word.startswith("llm.base_url="))


async def main():
    manager = make_manager()

    async def call(server, tool, **arguments):
        answer = await manager.execute_tool_call(server, tool, arguments)
        return answer.get("result") or answer["error"]

    found = await call("search_and_scrape_webpage", "google_search", q="otters")
    sandbox = (await call("tool-python", "create_sandbox")).split("sandbox_id:")[-1].strip()
    executed = await call("tool-python", "run_python_code", code_block="print(6 * 7)", sandbox_id=sandbox)
    own = await call("own", "get_current_time", timezone="UTC")
    model = openai.OpenAI(base_url=MODEL, api_key="none")
    messages = [{"role": "user", "content": f"{found} {executed} {own}"}]
    print(model.chat.completions.create(model="m", messages=messages).choices[0].message.content)


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with copied_environment("mirothinker", tmp_path_factory.mktemp("agent")) as copy:
        yield copy


@pytest.fixture
def page(tmp_path: Path, environment: Path, wheel: Path, model: ModelServer) -> PrintedPage:
    """The page in a checkout after its one line was changed; `uv` is an environment's own Python and pip."""
    core = tmp_path / "src" / "core"
    core.mkdir(parents=True)
    (core / "pipeline.py").write_text(PIPELINE)
    (tmp_path / "main.py").write_text(MAIN)
    places = [
        ("https://google.serper.dev", model.root),
        (MODEL_URL, model.root),
        ("uv run main.py", f"{environment}/bin/python main.py"),
        ("uv pip install toolhub-runtime", f"{environment}/bin/pip install {wheel}"),
    ]
    page = printed_page("mirothinker", tmp_path, addresses=places)
    page.write("hub.yaml", ".env")
    page.run(page.script("sed -i"))
    return page


def variables(page: PrintedPage) -> dict[str, str]:
    """The agent's environment: what `.env` says."""
    printed = page.run("set -a; . ./.env; set +a; env -0")
    named = {line.partition("=")[0] for line in page.file(".env").splitlines()}
    every = dict(entry.split("=", 1) for entry in printed.split("\0") if entry)
    return {name: every[name] for name in named}


def test_two_sweeps_share_a_hub_whose_servers_need_no_e2b(page: PrintedPage, hub_bin: Path, model: ModelServer) -> None:
    model.pages["/search"] = {"organic": [{"title": "Otters", "link": "https://example.org/otters"}]}
    model.usual = lambda seen: said("It is 42.", hold=True)
    environ = variables(page) | {"OWN_SERVER": str(hub_bin / "mcp-server-time")}
    with page.hub(hub_bin=hub_bin, **environ) as hub, hub.client() as http, ThreadPoolExecutor() as threads:
        sweeps = threads.submit(page.run, page.script("TOOLHUB_RUN=first"), **environ)
        try:
            eventually(lambda: model.running == 2 or sweeps.done(), within=PROGRAM_ENDS_WITHIN_S)
            runs = {task["run"] for task in http.get("/v1/tasks").json()["tasks"]}
        finally:
            model.release()
        assert sweeps.result().count("It is 42.") == 2
    assert runs == {"first", "second"}
    for chat in model.chats:
        found = chat.body["messages"][0]["content"]
        assert "example.org/otters" in found and "stdout: ['42\\n']" in found
        # A server that the hub does not have is an error with TOOLHUB_SERVERS=hub.
        assert "has no server 'own'" in found


def test_a_private_hub_keeps_the_agents_own_servers(page: PrintedPage, hub_bin: Path, model: ModelServer) -> None:
    model.usual = lambda seen: said("It is late.")
    environ = variables(page) | {"OWN_SERVER": str(hub_bin / "mcp-server-time")}
    assert page.run(page.script("TOOLHUB_COMMAND"), hub_bin, **environ) == "It is late.\n"
    assert '"timezone": "UTC"' in model.chats[0].body["messages"][0]["content"]
