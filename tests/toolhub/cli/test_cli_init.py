"""`toolhub init`: the servers of other programs become a config, and without any there is an example that works."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import Done
from served_hub import stub
from toolhub_command import Shell

from toolhub.cli.init import EXAMPLE_SERVERS, OPTIONAL
from toolhub.config import Config, load_config, parse_config
from toolhub.config.discover import _read_json, find_configs, places

SECRET = "sk-0123456789"


class Home:
    """A user's home folder with a project in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.project.mkdir()
        self._shell = Shell(self.project)

    def write(self, path: str, content: Any) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content if isinstance(content, str) else json.dumps(content))

    def __call__(self, *arguments: str, **env: str) -> Done:
        own = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / ".config")}
        return self._shell(*arguments, env=own | env)

    def config(self, name: str = "hub.yaml", **environ: str) -> Config:
        return load_config(self.project / name, environ=environ)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_servers_of_every_program_are_found_translated_and_can_be_used(home: Home) -> None:
    home.write(".config/Claude/claude_desktop_config.json", {"mcpServers": {"time": {"command": "mcp-server-time"}}})
    remote = {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${env:MY_TOKEN}"}}
    home.write(".cursor/mcp.json", {"mcpServers": {"time": {"command": "mcp-server-time"}, "my notes": remote}})
    home.write(
        "project/.vscode/mcp.json",
        """{ // for all of us
          "inputs": [{"type": "promptString", "id": "gh-pat", "password": true}],
          "servers": {
            "time": {"type": "stdio", "command": "uvx", "args": ["here", "${workspaceFolder}"], "envFile": "x"},
            "hub": {"type": "http", "url": "https://example.org//a", "headers": {"X-Key": "${input:gh-pat}"},},
          }
        }""",
    )
    home.write(".claude.json", {"mcpServers": {}, "projects": {str(home.project): {"mcpServers": {"echo": stub()}}}})
    done = home("init")
    assert done.returncode == 0 and done.stderr == ""
    for line in (
        "  Claude Desktop, ~/.config/Claude/claude_desktop_config.json: time",
        "  Cursor, ~/.cursor/mcp.json: time, my-notes",
        "  VS Code, ./.vscode/mcp.json: time, hub",
        "  Claude Code, ~/.claude.json: echo",
        "  export GH_PAT=...",
        "  export MY_TOKEN=...",
    ):
        assert f"{line}\n" in done.stdout
    servers = home.config(MY_TOKEN="t1", GH_PAT="p1").servers
    assert list(servers) == ["time", "my-notes", "time-vs-code", "hub", "echo"]
    assert servers["my-notes"].headers == {"Authorization": "Bearer t1"} and servers["hub"].headers == {"X-Key": "p1"}
    assert servers["time-vs-code"].args == ["here", str(home.project)]
    assert "# left out: envFile" in (home.project / "hub.yaml").read_text()
    call = home("call", "echo", "echo", '{"text": "hi"}', MY_TOKEN="t", GH_PAT="p")
    assert call.stdout == "hi\n", call.stderr


def test_a_secret_is_written_for_the_owner_alone_and_with_a_warning(home: Home) -> None:
    entry = {"command": "x", "args": ["--api-key", SECRET], "env": {"API_KEY": SECRET, "OTHER_KEY": "${OTHER_KEY}"}}
    home.write(".cursor/mcp.json", {"mcpServers": {"a": entry}})
    done = home("init")
    assert "hub.yaml contains secrets" in done.stderr and "a (env.API_KEY, args)" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert stat.S_IMODE((home.project / "hub.yaml").stat().st_mode) == 0o600


def test_a_file_is_only_replaced_with_force(home: Home) -> None:
    assert home("init").returncode == 0
    (home.project / "hub.yaml").write_text("mine")
    refused = home("init")
    assert refused.returncode == 2 and "hub.yaml exists" in refused.stderr and "--force" in refused.stderr
    assert (home.project / "hub.yaml").read_text() == "mine"
    assert home("init", "--force").returncode == 0 and home.config().servers
    assert "cannot write no/hub.yaml" in home("init", "no/hub.yaml").stderr


def test_without_other_programs_the_example_works_at_once(home: Home) -> None:
    done = home("init")
    assert "Found no servers" in done.stdout and "Wrote hub.yaml with a small example" in done.stdout
    command = next(line for line in done.stdout.splitlines() if "toolhub call" in line)
    assert command == '  toolhub call clock get_current_time \'{"timezone": "UTC"}\''
    called, doctor = home("call", "clock", "get_current_time", '{"timezone": "UTC"}'), home("doctor")
    assert "UTC" in called.stdout and called.returncode == 0
    assert "2 of 2 servers work" in doctor.stdout and doctor.returncode == 0


def test_empty_writes_the_example_though_there_are_servers(home: Home) -> None:
    home.write(".cursor/mcp.json", {"mcpServers": {"a": {"command": "x"}}})
    assert home("init", "--empty", "b.yaml").returncode == 0
    assert list(home.config("b.yaml").servers) == ["clock", "notes"]


@pytest.mark.quick
def test_what_the_example_shows_in_comments_is_right() -> None:
    data = yaml.safe_load(re.sub(r"(?m)^( *)# ( *\w+:)", r"\1\2", EXAMPLE_SERVERS + OPTIONAL))
    config = parse_config(data, environ={"API_KEY": "k", "REMOTE_TOKEN": "t"})
    assert list(config.servers) == ["clock", "notes", "files", "remote"]
    assert (config.hub.model_dump(), config.limits) == (Config().hub.model_dump(), Config().limits)


def test_mirothinkers_servers_become_builtins(home: Home) -> None:
    home.write("project/conf/agent/mirothinker_1.7_keep5_max200.yaml", "")
    home.write(".cursor/mcp.json", {"mcpServers": {"mine": {"command": "x"}}})
    assert "MiroThinker, ./conf/agent" in home("init").stdout
    config = home.config(SERPER_API_KEY="k")
    assert list(config.servers) == ["search_and_scrape_webpage", "jina_scrape_llm_summary", "tool-python", "mine"]
    assert config.servers["tool-python"].builtin == "python" and config.sandbox.default_profile == "mirothinker"


def test_miroflows_tools_run_in_its_folder_with_toolhubs_references(home: Home) -> None:
    tool = 'name: tool-x\ntool_command: python\nargs: [-m, src.x]\nenv:\n  A: "${oc.env:A}"\n  B: "${oc.env:B,no}"\n'
    home.write("project/config/tool/tool-x.yaml", tool)
    assert "MiroFlow, ./config/tool: tool-x" in home("init").stdout
    server = home.config(A="a").servers["tool-x"]
    assert (server.command, server.args, server.env) == ("python", ["-m", "src.x"], {"A": "a", "B": "no"})
    assert server.cwd == str(home.project)


def test_what_cannot_be_used_is_told_and_does_not_stop_the_rest(home: Home) -> None:
    home.write(".cursor/mcp.json", '{"mcpServers": {')
    home.write("project/.cursor/mcp.json", {"mcpServers": ["a"]})
    broken = {
        "good": {"command": "x"},
        "broken": {"type": "http"},
        "toolhub": {"command": "toolhub", "args": ["stdio"]},
    }
    home.write("project/.mcp.json", {"mcpServers": broken})
    found = {
        config.path.relative_to(home.folder).as_posix(): config for config in find_configs(home.folder, home.project)
    }
    assert "cannot be read" in found[".cursor/mcp.json"].problem
    assert "cannot be read" in found["project/.cursor/mcp.json"].problem
    good, other = found["project/.mcp.json"].servers
    assert good.data == {"command": "x"} and other.data["disabled"] and "needs exactly one of" in other.notes[0]
    assert home("init").returncode == 0 and list(home.config().servers) == ["good"]


def test_a_hostile_project_costs_little_time_and_memory_and_writes_nothing_to_the_terminal(home: Home) -> None:
    """`toolhub init` reads the files of whatever folder it runs in."""
    unclear = "[" + "," + "/**/" * 60 + "//" * 60 + '"\\"' * 50_000 + "/*" * 50_000
    home.write("project/.vscode/mcp.json", unclear)
    bomb = "\n".join(f"a{n}: &a{n} [{', '.join(f'*a{n - 1}' if n else 'x' for _ in range(9))}]" for n in range(12))
    home.write("project/config/tool/bomb.yaml", f"{bomb}\nname: bomb\ntool_command: python\nargs: *a11\n")
    escape = "\x1b]0;title\x07"
    entry = {"command": "x", "env": {f"A_KEY{escape}": SECRET}, f"other{escape}": 1}
    home.write("project/.mcp.json", {"mcpServers": {f"good{escape}": entry}})
    done = home("init")
    assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr
    assert done.stdout.count("cannot be read") == 2 and "use fewer aliases" in done.stdout
    assert "\x1b" not in (home.project / "hub.yaml").read_text()


@pytest.mark.quick
def test_comments_and_last_commas_are_no_json_and_stay_in_strings(home: Home) -> None:
    text = '{"a": "// , ] /* \\" */", /* , */ "b": [1, 2, // last\n ], /**/ } // end'
    home.write("a.json", text)
    assert _read_json(home.folder / "a.json") == {"a": '// , ] /* " */', "b": [1, 2]}


@pytest.mark.quick
def test_on_macos_the_settings_are_in_the_library(tmp_path: Path) -> None:
    found = {
        place.path.relative_to(tmp_path).as_posix() for place in places(tmp_path, tmp_path / "p", platform="darwin")
    }
    assert "Library/Application Support/Claude/claude_desktop_config.json" in found
    assert "Library/Application Support/Code/User/mcp.json" in found
