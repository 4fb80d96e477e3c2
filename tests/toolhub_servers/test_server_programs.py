"""Each server as users start it: `python -m toolhub_servers NAME`, over stdio."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from in_process import run_server
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from server_calls import answer

from tests.toolhub_servers.roster import ALL, make

# A call that each server answers without a network, a key or a browser, and what is in the answer.
A_CALL_OF: dict[str, tuple[str, dict[str, Any], str]] = {
    "browser": ("browser_close", {}, "The browser is closed."),
    "clock": ("get_current_time", {}, "UTC"),
    "files": ("list_files", {}, "chromium"),
    "google_search": ("google_search", {"q": " "}, "Search query 'q' is required"),
    "jina_scrape_llm_summary": (
        "scrape_and_extract_info",
        {"url": "http://a.example", "info_to_extract": "a"},
        "SUMMARY_LLM_BASE_URL environment variable is not set",
    ),
    "python": ("create_sandbox", {}, "sandbox_id: "),
    "reader": ("convert_to_markdown", {"uri": "data:text/plain,a%20heron"}, "a heron"),
    "reading": ("convert_to_markdown", {"uri": "data:text/plain,a%20heron"}, "a heron"),
    "reasoning": ("reasoning", {"question": "why?"}, "ANTHROPIC_API_KEY is not set"),
    "reasoning_os": ("reasoning", {"question": "why?"}, "REASONING_BASE_URL is not set"),
    "search_and_scrape_webpage": ("sogou_search", {"q": "a"}, "environment variable not set"),
    "sogou_search": ("sogou_search", {"Query": "a"}, "TENCENTCLOUD_SECRET_KEY is not set"),
    "sqlite": ("tables", {}, '{"columns": '),
    "stateless_python": ("python", {"code": "print(6 * 7)"}, "42"),
    "task_planner": ("list_todos", {}, "# Task Plan"),
    "transcribe": ("audio_transcription", {"audio_path_or_url": "a.mp3"}, "[ERROR]: "),
    "transcribe_os": ("audio_transcription", {"audio_path_or_url": "a.mp3"}, "[ERROR]: "),
    "vqa": ("visual_question_answering", {"media_path_or_url": "a.png", "question": "what?"}, "[ERROR]: "),
    "vqa_os": ("visual_question_answering", {"image_path_or_url": "a.png", "question": "what?"}, "Error: "),
}
# What a program does not start without.
FLAGS = {"browser": ["--executable", "./chromium"]}
VARIABLES = dict.fromkeys(("google_search", "search_and_scrape_webpage"), {"SERPER_API_KEY": "none"})


def program(name: str, folder: Path) -> StdioServerParameters:
    (folder / "chromium").touch(0o755)  # never started
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "toolhub_servers", name, *FLAGS.get(name, [])],
        env={"XDG_STATE_HOME": str(folder), **VARIABLES.get(name, {})},
        cwd=folder,
    )


@pytest.mark.anyio
@pytest.mark.parametrize("name", ALL)
async def test_a_server_lists_its_tools_and_answers_over_stdio(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    tool, arguments, told = A_CALL_OF[name]
    with anyio.fail_after(60):
        async with Client(program(name, tmp_path)) as client:
            assert (await client.list_tools()).tools == await make(name, tmp_path).list_tools()
            assert told in await answer(client, tool, **arguments)


@pytest.mark.parametrize("name", ALL)
def test_a_server_explains_itself_and_its_options(name: str) -> None:
    done = run_server(name, "--help")
    assert done.returncode == 0
    help_text = " ".join(done.stdout.split())
    assert f"python -m toolhub_servers {name}" in help_text and "MCP over stdio" in help_text


def test_an_unusable_option_ends_the_program_with_one_sentence() -> None:
    done = run_server("files", "--root", "/no/such/place")
    assert (done.returncode, done.stdout) == (2, "")
    assert "root '/no/such/place' is not a directory" in done.stderr
