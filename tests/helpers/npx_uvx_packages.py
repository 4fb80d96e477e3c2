"""Packages that npx and uvx start without a network, and a caller that talks to what they start.

Each is an MCP server with one tool, `look`, which says what its process was given.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from real_processes import FIXTURES

from testbed import third_party
from toolhub.spawn.launchers.resolver import Command

NODE_SERVER = """#!/usr/bin/env node
const readline = require("readline");
const answers = {
  initialize: () => ({protocolVersion: "2025-06-18", capabilities: {}, serverInfo: {name: "looks", version: "1"}}),
  "tools/list": () => ({tools: [{name: "look", inputSchema: {type: "object"}}]}),
  "tools/call": () => ({content: [{type: "text", text: JSON.stringify({
    argv: process.argv.slice(2), env: process.env, pid: process.pid, version: require("./package.json").version,
  })}]}),
};
readline.createInterface({input: process.stdin}).on("line", (line) => {
  const {id, method} = JSON.parse(line);
  if (id !== undefined) console.log(JSON.stringify({jsonrpc: "2.0", id, result: answers[method]()}));
}).on("close", () => process.exit(0));
"""

PYTHON_SERVER = """import json, os, sys
from looks.minimal import Server, text

def main():
    server = Server("looks")
    seen = {"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid(), "prefix": sys.prefix}
    server.tool("look")(lambda call: text(json.dumps(seen)))
    server.run()
"""


CLIENT = {"name": "test", "version": "1"}
PYTHON = os.path.realpath(sys.executable)  # without a virtual environment: its path is the program's


def npm_package(folder: Path, version: str = "1.0.0") -> Path:
    """Write a package that `npx FOLDER` runs."""
    folder.mkdir(exist_ok=True)
    described = {"name": "looks", "version": version, "bin": {"looks": "server.js"}}
    (folder / "package.json").write_text(json.dumps(described))
    (folder / "server.js").write_text(NODE_SERVER)
    (folder / "server.js").chmod(0o755)
    return folder


def wheel(folder: Path) -> Path:
    """Write a wheel that `uvx --from WHEEL looks` runs."""
    path, info = folder / "looks-1.0.0-py3-none-any.whl", "looks-1.0.0.dist-info"
    files = {
        "looks/__init__.py": PYTHON_SERVER,
        "looks/minimal.py": (FIXTURES / "minimal.py").read_text(),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: looks\nVersion: 1.0.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nlooks = looks:main\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def uvx() -> str:
    """Return the path of `uvx`, installed into the test cache where there is none."""
    return shutil.which("uvx") or str(third_party.ensure_venv("uv", ("uv==0.13.8",)) / "bin" / "uvx")


def variables(home: Path) -> dict[str, str]:
    """An environment in which npx and uvx keep their packages below `home`."""
    folders = [str(Path(third_party.node()).parent), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    return {"HOME": str(home), "PATH": os.pathsep.join(dict.fromkeys(folders))}


class StartedPackage:
    """A server that has come up."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process
        self._ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=CLIENT)

    def look(self) -> dict[str, Any]:
        """What its process was given."""
        seen: dict[str, Any] = json.loads(self._ask("tools/call", name="look")["content"][0]["text"])
        return seen

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())["result"]
        return result


@contextmanager
def running(command: Command) -> Iterator[StartedPackage]:
    """Run a command until the block is left; its end of stdin ends all of it."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen([*command.argv], env=dict(command.env), cwd=command.cwd, text=True, **pipes) as process:
        try:
            yield StartedPackage(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=20)


def launcher_of(folder: Path, body: str = "PYTHON -S SCRIPT x; exit") -> Command:
    """A command `npx -y looks x` whose npx is a shell script: as real a tree, in a fraction of the time.

    body: what it does; PYTHON, SCRIPT and FOLDER are replaced.
    """
    script = folder / "looks.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(FIXTURES)!r})\nfrom minimal import Server\n")
    with script.open("a") as file:
        file.write("Server('looks').run()\n")
    (folder / "package.json").write_text('{"version": "1.0.0"}')
    for word, value in {"PYTHON": PYTHON, "SCRIPT": str(script), "FOLDER": str(folder)}.items():
        body = body.replace(word, value)
    launcher = folder / "npx"
    launcher.write_text(f"#!/bin/sh\n{body}\n")
    launcher.chmod(0o755)
    return Command([str(launcher), "-y", "looks", "x"], variables(folder), str(folder))


def npx_of(package: Path, *arguments: str, options: Sequence[str] = ("-y",)) -> Command:
    """The command that runs a package of `npm_package` as a config would name it."""
    argv = [third_party.npx(), *options, str(package), *arguments]
    return Command(argv, variables(package.parent), str(package.parent))
