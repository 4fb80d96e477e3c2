"""The example configs: each can be loaded, works, and together they show every key there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from pydantic import BaseModel

from toolhub import Hub, HubTask
from toolhub.config import AgentSettings, LlmSettings, SubAgentSettings, load_config, parse_config
from toolhub.config.models import HttpLimits, HubSettings, Limits
from toolhub.config.sandbox import E2BSettings, SandboxProfile, SandboxSettings
from toolhub.config.server import CacheSettings, RestartSettings, ServerSpec, ToolRules, ToolSettings
from toolhub.errors import StartError, ToolNotFound

CONFIGS = Path(__file__).parents[1] / "configs"
HUB = CONFIGS / "hub.yaml"
LOCAL = CONFIGS / "local.yaml"
MIROTHINKER = CONFIGS / "mirothinker_1.7.yaml"
# MiroFlow's, as the three servers of MiroThinker get them.
KEYS = {
    "SERPER_API_KEY": "serper-key",
    "SERPER_BASE_URL": "https://serper.example.org",
    "JINA_API_KEY": "jina-key",
    "JINA_BASE_URL": "https://jina.example.org",
    "SUMMARY_LLM_BASE_URL": "http://127.0.0.1:8000/v1/chat/completions",
    "SUMMARY_LLM_MODEL_NAME": "a-model",
    "SUMMARY_LLM_API_KEY": "model-key",
    "E2B_API_KEY": "e2b-key",
}


def keys_of(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """hub.yaml as plain data."""
    data: dict[str, Any] = yaml.safe_load(HUB.read_text())
    return data


@pytest.mark.quick
def test_every_example_is_loaded_by_a_test_below() -> None:
    names = {"hub.yaml", "minimal.yaml", "mcp_servers.json", "mirothinker_1.7.yaml", "local.yaml"}
    assert {path.name for path in CONFIGS.iterdir()} == names | {"hub.schema.json"}


@pytest.mark.quick
def test_the_minimal_config_loads() -> None:
    assert list(load_config(CONFIGS / "minimal.yaml", environ={}).servers) == ["time"]


@pytest.mark.quick
def test_the_desktop_file_loads() -> None:
    config = load_config(CONFIGS / "mcp_servers.json", environ={"TOOLHUB_FILES": "/data"})
    assert list(config.servers) == ["time", "filesystem", "everything"]
    assert config.servers["filesystem"].args[-1] == "/data"


@pytest.mark.quick
def test_the_browser_that_the_desktop_file_switches_off_would_load_too() -> None:
    entry = json.loads((CONFIGS / "mcp_servers.json").read_text())["mcpServers"]["playwright"]
    (spec,) = parse_config({"mcpServers": {"playwright": entry | {"disabled": False}}}, environ={}).servers.values()
    assert spec.command == "npx" and "--isolated" in spec.args


@pytest.mark.quick
def test_the_complete_config_loads_without_any_variable() -> None:
    config = load_config(HUB, environ={"HOME": "/home/me"})
    assert list(config.servers) == ["files", "clock", "tool-python", "time", "sqlite"]
    assert config.hub.token is None and config.hub.uds is None
    assert config.hub.state_path == Path("/home/me/.local/state/toolhub")


@pytest.mark.quick
def test_the_complete_config_takes_its_variables() -> None:
    environ = {"TOOLHUB_TOKEN": "secret", "TOOLHUB_SOCKET": "/run/hub.sock", "TOOLHUB_FILES": "/data"}
    config = load_config(HUB, environ=environ)
    assert config.hub.token is not None and config.hub.token.get_secret_value() == "secret"
    assert config.hub.uds == Path("/run/hub.sock") and config.servers["files"].cwd == "/data"


@pytest.mark.quick
def test_the_server_that_is_switched_off_would_load_too(shown: dict[str, Any]) -> None:
    remote = shown["servers"]["remote"] | {"disabled": False}
    spec = parse_config({"servers": {"remote": remote}}, environ={"REMOTE_TOKEN": "t"}).servers["remote"]
    assert spec.transport == "http" and spec.headers == {"Authorization": "Bearer t"}


@pytest.mark.quick
@pytest.mark.parametrize(
    "section, model",
    [
        ("hub", HubSettings),
        ("limits", Limits),
        ("sandbox", SandboxSettings),
        ("llm", LlmSettings),
        ("agent", AgentSettings),
    ],
)
def test_the_complete_config_shows_every_key_of_a_section(
    shown: dict[str, Any], section: str, model: type[BaseModel]
) -> None:
    assert set(shown[section]) == keys_of(model)


@pytest.mark.quick
def test_the_complete_config_shows_every_limit_of_http(shown: dict[str, Any]) -> None:
    assert shown["hub"]["http"] == HttpLimits().model_dump()


@pytest.mark.quick
def test_the_complete_config_shows_every_key_of_a_sandbox(shown: dict[str, Any]) -> None:
    sandbox = shown["sandbox"]
    assert set(sandbox["e2b"]) == keys_of(E2BSettings)
    web = sandbox["profiles"]["web"]
    assert set(web) == keys_of(SandboxProfile)
    defaults = SandboxProfile().model_dump()
    assert {key for key, value in web.items() if value != defaults[key]} == {"network"}


@pytest.mark.quick
def test_the_complete_config_shows_every_section(shown: dict[str, Any]) -> None:
    assert set(shown) == {"hub", "limits", "speculation", "sandbox", "llm", "agent", "servers", "mcpServers"}


@pytest.mark.quick
def test_the_complete_config_shows_every_key_of_a_server(shown: dict[str, Any]) -> None:
    servers = shown["servers"]
    assert {key for server in servers.values() for key in server} == keys_of(ServerSpec) - {"name"}
    files = servers["files"]
    assert keys_of(ServerSpec) - set(files) == {"name", "url", "headers", "builtin", "options"}
    assert set(files["restart"]) == keys_of(RestartSettings)
    assert set(files["cache"]) == keys_of(CacheSettings)
    assert set(files["tools"]) == keys_of(ToolRules)
    assert set(files["tools"]["policy"]["read_file"]) == keys_of(ToolSettings)


@pytest.mark.quick
def test_values_that_are_said_to_be_defaults_are(shown: dict[str, Any]) -> None:
    """The others are marked in the file."""
    limits, restart = Limits(), RestartSettings()
    assert shown["limits"] == limits.model_dump()
    assert shown["servers"]["files"]["restart"] == restart.model_dump()
    defaults = {name: field.default for name, field in ServerSpec.model_fields.items()}
    same = {key for key, value in shown["servers"]["files"].items() if value == defaults[key]}
    marked = {
        "description",
        "command",
        "args",
        "cwd",
        "env",
        "inherit_env",
        "stateful",
        "cache",
        "restart",
        "spawn",
        "preload",
        "tools",
    }
    assert set(shown["servers"]["files"]) - same == marked
    sandbox = SandboxSettings().model_dump()
    own = {"profiles": shown["sandbox"]["profiles"], "e2b": sandbox["e2b"] | {"api_key": "${E2B_API_KEY:-}"}}
    assert shown["sandbox"] == sandbox | own
    agent = shown["agent"]
    browsing = agent["sub_agents"]["browsing"]
    assert browsing == SubAgentSettings(servers=["time"]).model_dump()
    assert agent == AgentSettings().model_dump() | {"sub_agents": {"browsing": browsing}}
    llm = LlmSettings(endpoints=shown["llm"]["endpoints"]).model_dump()
    assert shown["llm"] == llm | {"api_key": "${LLM_API_KEY:-}"}
    hub = HubSettings().model_dump()
    variable = {"uds", "token", "state_dir", "max_starts"}
    assert {key for key, value in shown["hub"].items() if value != hub[key]} == variable


@pytest.mark.slow
def test_the_complete_config_works_as_it_is(tmp_path: Path) -> None:
    """Doctor starts every server; where pip has put our scripts is on the PATH, as it is for users."""
    scripts = Path(sys.executable).parent
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TOOLHUB_")}
    environ = kept | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "toolhub", "doctor", "--json", "--config", str(HUB)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(server["ok"] for server in json.loads(done.stdout)["servers"])


@pytest.mark.quick
def test_the_config_for_mirothinker_loads_without_any_variable() -> None:
    config = load_config(MIROTHINKER, environ={"HOME": "/home/me"})
    assert list(config.servers) == ["search_and_scrape_webpage", "jina_scrape_llm_summary", "tool-python"]
    assert config.sandbox.backend == "local" and config.sandbox.profiles["mirothinker"].network == "none"
    assert config.servers["search_and_scrape_webpage"].options["serper"] == {}


@pytest.mark.quick
def test_the_config_for_mirothinker_takes_the_variables_of_miroflow() -> None:
    more = {"TOOLHUB_SANDBOX": "e2b", "TOOLHUB_SANDBOX_NETWORK": "host"}
    config = load_config(MIROTHINKER, environ={"HOME": "/home/me"} | KEYS | more)
    search, summary, python = config.servers.values()
    assert search.options["serper"] == {"api_key": "serper-key", "base_url": "https://serper.example.org"}
    assert {name: summary.options[name.lower()] for name in KEYS if name.lower() in summary.options} == {
        name: value for name, value in KEYS.items() if name.startswith(("JINA", "SUMMARY"))
    }
    assert config.sandbox.backend == "e2b" and config.sandbox.profiles["mirothinker"].network == "host"
    assert config.sandbox.e2b.api_key is not None and config.sandbox.e2b.api_key.get_secret_value() == "e2b-key"
    assert python.is_stateful and not search.is_stateful


@pytest.mark.quick
def test_only_what_reads_may_be_sent_again_to_mirothinkers_servers() -> None:
    servers = load_config(MIROTHINKER, environ={}).servers.values()
    safe = {tool for server in servers for tool, policy in server.tools.policy.items() if policy.read_only}
    assert safe == {"google_search", "scrape_and_extract_info"}


@pytest.mark.quick
@pytest.mark.parametrize("variable, wanted", [(None, True), ("true", False)])
def test_the_local_config_loads_with_and_without_its_variables(variable: str | None, wanted: bool) -> None:
    environ = {"TOOLHUB_DOCS": "/data", "TOOLHUB_NO_BROWSER": variable} if variable else {}
    config = load_config(LOCAL, environ=environ)
    folder = "/data" if variable else "docs"
    assert config.servers["tool-google-search"].options["local"] == {"folder": folder}
    assert config.servers["tool-reading"].options["local_dirs"] == [folder]
    assert config.servers["tool-python"].options["local_dirs"] == [folder]
    assert ("browser" in config.servers) is wanted


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (folder := tmp_path / "documents").mkdir()
    (folder / "herons.md").write_text("# Herons\n\nA heron stands in the reeds and waits.\n")
    (folder / "owls.txt").write_text("Owls sleep by day.\n")
    return folder


async def told(task: HubTask, server: str, tool: str, **arguments: Any) -> str:
    result = await task.call(server, tool, arguments)
    assert not result.is_error, result.text
    return str(result.text)


@pytest.mark.anyio
async def test_the_servers_of_mirothinker_have_its_seven_tools(documents: Path) -> None:
    with anyio.fail_after(30):
        async with Hub(load_config(MIROTHINKER, environ=KEYS)) as hub, hub.task("t1") as task:
            assert [tool.name for tool in await task.tools()] == [
                "google_search",
                "scrape_and_extract_info",
                "create_sandbox",
                "run_command",
                "run_python_code",
                "upload_file_from_local_to_sandbox",
                "download_file_from_internet_to_sandbox",
            ]
            with pytest.raises(ToolNotFound):
                await task.call("search_and_scrape_webpage", "sogou_search", {"q": "herons"})


@pytest.mark.anyio
async def test_without_keys_mirothinkers_servers_say_which_one_is_missing(documents: Path) -> None:
    with anyio.fail_after(30):
        async with Hub(load_config(MIROTHINKER, environ={})) as hub, hub.task("t1") as task:
            with pytest.raises(StartError, match="SERPER_API_KEY"):
                await task.call("search_and_scrape_webpage", "google_search", {"q": "herons"})
            asked = {"url": "https://example.org", "info_to_extract": "herons"}
            answer = json.loads(await told(task, "jina_scrape_llm_summary", "scrape_and_extract_info", **asked))
            assert answer["error"] == "SUMMARY_LLM_BASE_URL environment variable is not set"
            assert "sandbox_id" in await told(task, "tool-python", "create_sandbox")


@pytest.mark.anyio
async def test_the_local_config_searches_reads_and_runs_code_without_a_network(documents: Path) -> None:
    environ = {"TOOLHUB_DOCS": str(documents), "TOOLHUB_NO_BROWSER": "true", "TOOLHUB_PLANS": str(documents / "plans")}
    with anyio.fail_after(60):
        async with Hub(load_config(LOCAL, environ=environ)) as hub, hub.task("t1") as task:
            answer = json.loads(await told(task, "tool-google-search", "google_search", q="heron reeds"))
            (link,) = [hit["link"] for hit in answer["organic"]]
            assert "stands in the reeds" in await told(task, "tool-reading", "convert_to_markdown", uri=link)
            created = await told(task, "tool-python", "create_sandbox")
            sandbox = {"sandbox_id": created.partition("sandbox_id: ")[2]}
            file = str(documents / "owls.txt")
            await told(task, "tool-python", "upload_file_from_local_to_sandbox", local_file_path=file, **sandbox)
            code = "print(open('/home/user/owls.txt').read())"
            assert "Owls sleep" in await told(task, "tool-python", "run_python_code", code_block=code, **sandbox)
            assert "'42\\n'" in await told(task, "stateless_python", "python", code="print(6 * 7)")
            assert "- [ ] look at owls" in await told(task, "task_planner", "add_todo", titles=["look at owls"])


def test_without_folder_and_chromium_the_other_servers_of_the_local_config_work(tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TOOLHUB_")}
    (programs := tmp_path / "bin").mkdir()  # a PATH without any browser
    places = {"XDG_STATE_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "toolhub", "doctor", "--json", "--config", str(LOCAL)]
    done = subprocess.run(
        command, cwd=tmp_path, env=kept | places | {"PATH": str(programs)}, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 1, done.stdout + done.stderr
    servers = {server["server"]: server["error"] for server in json.loads(done.stdout)["servers"]}
    failed = {name: error for name, error in servers.items() if error}
    assert sorted(failed) == ["browser", "tool-google-search", "tool-python", "tool-reading"]
    assert "no Chromium found" in failed.pop("browser")
    assert all("docs" in error for error in failed.values())
