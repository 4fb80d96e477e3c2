"""The tutorial, followed word by word: its files are written, its commands run, what it prints is compared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from printed_page import ROOT, Block, blocks_of
from served_hub import environment, eventually

TUTORIAL = ROOT / "docs" / "tutorial.md"


@dataclass
class Follower:
    """Somebody who does what the page says. Only the installation is done already, and the hub takes a free port."""

    folder: Path
    said: str = ""
    """By the last command."""
    hub: subprocess.Popen[bytes] | None = None
    compared: int = 0
    installations: list[str] = field(default_factory=list)

    def follow(self, block: Block) -> None:
        if block.name:
            (self.folder / block.name).write_text(block.text + "\n")
        elif block.kind == "sh" and "pip install" in block.text:
            self.installations.append(block.text)
        elif block.kind == "sh" and block.text.startswith("toolhub serve"):
            self._serve(block.text)
        elif block.kind == "sh":
            self._run(block.text)
        elif block.kind == "text":
            self._compare(block.text)

    @property
    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return environment({"PATH": path, "XDG_STATE_HOME": str(self.folder / "state"), "PYTHONWARNINGS": "error"})

    def _run(self, commands: str) -> None:
        done = subprocess.run(
            ["bash", "-ec", f"{commands}\npwd > {self.folder}/.folder"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        self.said = done.stdout
        self.folder = Path((self.folder / ".folder").read_text().strip())

    def _serve(self, command: str) -> None:
        log = self.folder / "hub.log"
        with log.open("wb") as stderr:
            self.hub = subprocess.Popen(
                ["bash", "-c", f"exec {command} --port 0"], cwd=self.folder, env=self._environment, stderr=stderr
            )
        eventually(lambda: "the hub is ready" in log.read_text(), within=60)

    def _compare(self, shown: str) -> None:
        if "has stopped" in shown:  # the page says: press Ctrl-C in the second terminal
            assert self.hub is not None
            self.hub.send_signal(signal.SIGINT)
            assert self.hub.wait(timeout=30) == 0
            self.said = (self.folder / "hub.log").read_text().splitlines()[-1]
        said = "".join(f"{line.rstrip()}\n" for line in self.said.splitlines())
        assert re.fullmatch(_pattern(shown), said.strip("\n") + "\n"), f"printed:\n{said}\nthe page shows:\n{shown}"
        self.compared += 1


def _pattern(shown: str) -> str:
    """A line `...` stands for any lines, and `...` within a line for any text."""
    return "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*").rstrip() + r"\n"
        for line in shown.splitlines()
    )


@pytest.mark.slow
def test_the_tutorial_works_as_printed(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    try:
        for block in blocks_of(TUTORIAL.read_text()):
            follower.follow(block)
    finally:
        if follower.hub is not None and follower.hub.poll() is None:
            follower.hub.kill()
            follower.hub.wait()
    assert follower.compared == 9
    assert len(follower.installations) == 1


def test_what_the_tutorial_installs_is_there() -> None:
    assert "pip install '.[hub,servers]'" in TUTORIAL.read_text()
    assert all(extra in (ROOT / "pyproject.toml").read_text() for extra in ("\nhub = [", "\nservers = ["))
