"""The distribution's name, its install command, and the entry point of the command `toolhub`.

On PyPI `toolhub` is another project, with an import package of the same name. So this distribution is named
`toolhub-runtime`. This module lies outside the package `toolhub`, so it can report when Python finds the other project.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "toolhub-runtime"
FOREIGN = "toolhub"
"""The other project's distribution."""


def requirement(*extras: str) -> str:
    """Return the requirement for an installer, e.g. ``'toolhub-runtime[hub,servers]'``, quoted for a shell."""
    return f"'{DISTRIBUTION}[{','.join(extras)}]'" if extras else DISTRIBUTION


def install_command(*extras: str, program: str = "pip install") -> str:
    """Return the command that installs this distribution with these extras."""
    return f"{program} {requirement(*extras)}"


def main() -> None:
    """The command `toolhub`."""
    problem = find_conflict(Path(__file__).parents[1])
    if problem:
        sys.stderr.write(f"toolhub: {problem}\n")
        sys.exit(2)
    from toolhub.cli import main as command

    command()


def find_conflict(folder: Path) -> str:
    """Return a message if `import toolhub` finds another package than ours in `folder`; "" if all is well."""
    ours = folder / "toolhub" / "__init__.py"
    spec = find_spec("toolhub")
    found = spec.origin if spec is not None else None
    again = f"pip uninstall --yes {FOREIGN} {DISTRIBUTION}, then {install_command('hub')}"
    if any(folder.glob(f"{FOREIGN}-*.dist-info")):
        return (
            f"two distributions own the package `toolhub` in {folder}: {FOREIGN} (another project) and {DISTRIBUTION}. "
            f"Each overwrites files of the other. Keep only one of them: {again}"
        )
    if found is None or not ours.is_file():
        return f"files of the package `toolhub` are missing in {folder}; install it again: {again}"
    if not Path(found).samefile(ours):
        return (
            f"`import toolhub` finds {found}, not {ours} of {DISTRIBUTION}. If that is the other project {FOREIGN}, "
            f"run: {again}. If it is a folder of yours, rename it or remove it from PYTHONPATH"
        )
    return ""
