"""The packages that toolhub is compared with. Some need an environment of their own.

    python -m benchmarks.common.baselines

installs those environments beside the third-party servers of testbed/third_party.py, once per list of pins.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from testbed import third_party
from toolhub_runtime import install_command

_SHOW = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


@dataclass(frozen=True)
class Baseline:
    """One package. package: its name on PyPI. command: installs it.

    pins: what an environment of its own is made of; none if the package lives in this interpreter.
    """

    package: str
    command: str
    pins: tuple[str, ...] = ()

    def python(self) -> str | None:
        """Return the interpreter that has the package; None where it is not installed."""
        if not self.pins:
            return sys.executable if find_spec(self.package) else None
        folder = self._folder()
        return str(folder / "bin" / "python") if third_party.is_complete(folder) else None

    def install(self) -> None:
        """Make the environment if it is not there yet. Raises testbed.third_party.SetupError."""
        third_party.ensure_venv(self.package, self.pins)

    def versions(self) -> str:
        """Return the versions in the environment of its own, such as "NAME 1.0 beside mcp 1.2"; "" if it has none."""
        python = self.python()
        if not self.pins or python is None:
            return ""
        show = [python, "-c", _SHOW, self.package, "mcp"]
        own, mcp = subprocess.run(show, check=True, capture_output=True, text=True).stdout.split()
        return f"{self.package} {own} beside mcp {mcp}"

    def _folder(self) -> Path:
        return third_party.venv_directory(self.package, self.pins)


FASTMCP = Baseline("fastmcp", install_command("bench"))
LANGCHAIN = Baseline(
    "langchain-mcp-adapters",
    "python -m benchmarks.common.baselines",
    # Its last release needs the first major of the SDK.
    ("langchain-mcp-adapters==0.3.2", "langchain-core==1.7.2", "mcp==1.30.0"),
)


def main() -> None:
    try:
        LANGCHAIN.install()
    except third_party.SetupError as problem:
        sys.exit(f"environments: {problem}")
    print(f"environments: {LANGCHAIN.versions()} in {LANGCHAIN.python()}", file=sys.stderr)


if __name__ == "__main__":
    main()
