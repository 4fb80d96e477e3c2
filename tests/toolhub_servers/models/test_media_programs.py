"""The servers as users run them: in a hub, and alone over stdio with MiroFlow's environment variables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from in_process import run_server
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from toolhub_servers.models.media import READ_TIMEOUT, MediaSettings
from toolhub_servers.models.reasoning import ReasoningSettings
from toolhub_servers.models.reasoning_os import ReasoningOsSettings
from toolhub_servers.models.transcribe import TranscribeSettings
from toolhub_servers.models.transcribe_os import TranscribeOsSettings
from toolhub_servers.models.vqa import VqaSettings
from toolhub_servers.models.vqa_os import VqaOsSettings
from toolhub_servers.web.guard import LOOK_UP_S

from tests.toolhub_servers.models.media_standins import KEY, PATIENCE_S, Service, answer, png, wav
from toolhub import Hub, parse_config

FILES = {"a.png": png(), "a.wav": wav(1.5)}
# name of the server: prefix of its variables, what follows the address, tool, arguments
SERVERS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "vqa": (
        "OPENAI",
        "/v1",
        "visual_question_answering",
        {"media_path_or_url": "a.png", "question": "what?"},
    ),
    "vqa_os": (
        "VISION",
        "/v1/chat/completions",
        "visual_question_answering",
        {"image_path_or_url": "a.png", "question": "what?"},
    ),
    "transcribe": ("OPENAI", "/v1", "audio_transcription", {"audio_path_or_url": "a.wav"}),
    "transcribe_os": ("WHISPER", "/v1", "audio_transcription", {"audio_path_or_url": "a.wav"}),
    "reasoning": ("ANTHROPIC", "", "reasoning", {"question": "why?"}),
    "reasoning_os": ("REASONING", "/v1/chat/completions", "reasoning", {"question": "why?"}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def takes_files(name: str) -> bool:
    return not name.startswith("reasoning")


@pytest.mark.anyio
async def test_a_hub_runs_them_with_options_for_several_tasks(service: Service, folder: Path) -> None:
    entries = {}
    for name, (_, path, _, _) in SERVERS.items():
        options: dict[str, Any] = {"api_key": KEY, "base_url": service.url + path}
        options |= {"model": "some-model"} if name.endswith("_os") else {}
        options |= {"local_dirs": [str(folder)]} if takes_files(name) else {}
        entries[name] = {"builtin": name, "options": options}
    config = parse_config({"hub": {"state_dir": str(folder / "state")}, "servers": entries})
    with anyio.fail_after(PATIENCE_S):
        async with Hub(config) as hub, hub.task("a") as first, hub.task("b") as second:
            for name, (_, _, tool, arguments) in SERVERS.items():
                for task in (first, second):
                    assert (await task.call(name, tool, arguments)).text == "a red square"
    assert len(service.asked) == 2 * len(SERVERS)


@pytest.mark.anyio
@pytest.mark.parametrize("name", SERVERS)
async def test_one_answers_over_stdio_with_what_the_environment_says(service: Service, folder: Path, name: str) -> None:
    prefix, path, tool, arguments = SERVERS[name]
    environment = {f"{prefix}_API_KEY": KEY, f"{prefix}_BASE_URL": service.url + path}
    environment |= {f"{prefix}_MODEL_NAME": "some-model"} if name.endswith("_os") else {}
    folders = ["--local-dir", str(folder)] if takes_files(name) else []
    program = StdioServerParameters(
        command=sys.executable, args=["-m", "toolhub_servers", name, *folders], cwd=folder, env=environment
    )
    with anyio.fail_after(30):
        async with Client(program) as client:
            assert await answer(client, tool, **arguments) == "a red square"
    (asked,) = service.asked
    assert asked.headers.get("x-api-key") == KEY or asked.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.anyio
async def test_one_answers_over_stdio_what_it_lacks(folder: Path) -> None:
    """Without any key it lists its tools all the same, as MiroFlow wants for its prompt."""
    program = StdioServerParameters(command=sys.executable, args=["-m", "toolhub_servers", "reasoning_os"], cwd=folder)
    with anyio.fail_after(30):
        async with Client(program) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["reasoning"]
            assert "REASONING_BASE_URL is not set" in await answer(client, "reasoning", question="why?")


def test_by_default_a_call_ends_by_itself_before_a_hub_would_end_it() -> None:
    """Reading or downloading, and then the model's answer with all tries."""
    entry = {"builtin": "vqa"}
    given = parse_config({"servers": {"x": entry}}).servers["x"].call_timeout_s
    files = max(READ_TIMEOUT, LOOK_UP_S, MediaSettings().web.total_s)
    for settings in (VqaSettings(), VqaOsSettings(), TranscribeSettings(), TranscribeOsSettings()):
        assert files + settings.timeout_s < given
    for thinking in (ReasoningSettings(), ReasoningOsSettings()):
        assert thinking.timeout_s < given


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_explains_itself_its_options_and_its_variables(name: str) -> None:
    done = run_server(name, "--help")
    assert done.returncode == 0, done.stderr
    help_text = " ".join(done.stdout.split())
    assert f"python -m toolhub_servers {name}" in help_text and "MCP over stdio" in help_text
    assert f"{SERVERS[name][0]}_API_KEY" in help_text
    assert ("--local-dir" in help_text) == takes_files(name)


def test_an_unusable_option_ends_the_program_with_a_sentence() -> None:
    done = run_server("vqa_os", "--base-url", "models.example/v1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "base_url (VISION_BASE_URL) is not the http(s) URL of a service" in done.stderr
    assert "Traceback" not in done.stderr
