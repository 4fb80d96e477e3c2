"""The recipe of the LLM proxy, with the real SDK; stand-ins with vLLM's answers are the engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from llm_stand_in.answers import Answer, called, said
from llm_stand_in.model_server import ModelServer, Seen, open_model_server
from printed_page import MODEL_URL, PrintedPage, printed_page

pytestmark = pytest.mark.slow


@pytest.fixture
def page(tmp_path: Path, model: ModelServer) -> PrintedPage:
    return printed_page("vllm", tmp_path, addresses=[(MODEL_URL, model.root)])


def test_the_agents_requests_stay_on_one_of_the_engines(
    page: PrintedPage, hub_bin: Path, model: ModelServer, openai_environment: Path, wheel: Path
) -> None:
    def answer(seen: Seen) -> Answer:
        if seen.body["messages"][-1]["role"] == "tool":
            return said("It is noted.")
        return called(("time__get_current_time", {"timezone": "UTC"}))

    with open_model_server() as second:
        page.addresses["http://127.0.0.1:8001"] = second.root
        model.usual = second.usual = answer
        with page.hub(hub_bin=hub_bin):
            install = page.command("pip install openai").replace(" toolhub-runtime", f" {wheel}")
            page.run(install, openai_environment / "bin")
            page.write("agent.py")
            command = page.command("python agent.py")
            assert page.run(command, openai_environment / "bin") == "It is noted.\n"
            assert "toolhub_llm_" in page.run(page.command("/metrics"))
        conversations = [server.chats for server in (model, second) if server.chats]
    (conversation,) = conversations
    assert [chat.body["messages"][-1]["role"] for chat in conversation] == ["user", "tool"]
    assert '"timezone": "UTC"' in conversation[1].body["messages"][-1]["content"]


def test_the_commands_about_the_engine_print_what_the_page_says(
    page: PrintedPage, hub_bin: Path, model: ModelServer
) -> None:
    printed = page.run(page.command("toolhub llm-command"), hub_bin)
    assert "vllm serve Qwen/Qwen3-8B" in printed and "--enable-prefix-caching" in printed
    assert "prefix cache" in page.run(page.command("toolhub doctor"), hub_bin).lower()
