"""The `toolhub` command as a new user runs it: in a folder of its own, 80 columns wide."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from served_hub import TOOLHUB, environment

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Shell:
    """Runs commands in `folder`. hub: the address of a hub that all of them use."""

    folder: Path
    hub: str = ""

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
        own = {"XDG_STATE_HOME": str(self.folder / "state")} | ({"TOOLHUB_URL": self.hub} if self.hub else {})
        done = subprocess.run(
            [*TOOLHUB, *arguments],
            cwd=self.folder,
            env=environment(own | dict(env or {})),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def together(self, *commands: Sequence[str], env: Mapping[str, str] | None = None) -> list[Done]:
        """Run commands side by side; each spends its time with imports."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda command: self(*command, env=env), commands))

    def json(self, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None) -> Any:
        """What a command prints with --json."""
        done = self(*arguments, "--json", env=env)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def refusal(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """The message of a command that cannot be carried out."""
        return refused(self(*arguments, env=env))


def refused(done: Done) -> str:
    """The message of a command that was not carried out, without the line that names the entry of its error."""
    assert done.returncode == 2 and done.stdout == ""
    message, _, more = done.stderr.removesuffix("\n").rpartition("\n")
    assert message.startswith("toolhub: ")
    assert more.startswith("More: toolhub errors ")
    return message
