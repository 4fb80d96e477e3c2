"""Run tests as an ordinary user: what isolates and cleans up must work without root, too.

    python tests/as_user.py [FOLDER BELOW tests/ ...]

For root: makes the account `toolhub-test`, a virtual environment that it can reach, and a copy of the tests. For
everybody else there is nothing to do but to run them.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from testbed.third_party import SetupError, apt_install

ROOT = Path(__file__).parents[1]
ACCOUNT = "toolhub-test"
FOLDERS = (
    "toolhub_sandbox/local",
    "toolhub_sandbox/hostile",
    "toolhub_sandbox/test_hub_sandboxes.py",
    "toolhub_servers/browser",
)
# Outside of root's home, where others may look.
CACHE = Path("/var/cache/toolhub-test")
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "/usr/bin/python3.13", "/usr/bin/python3.12")


def main(folders: list[str]) -> int:
    wanted = folders or list(FOLDERS)
    if os.geteuid() != 0:
        return subprocess.run(
            [sys.executable, "-m", "pytest", *(f"tests/{name}" for name in wanted)], cwd=ROOT
        ).returncode
    account = _account()
    python = _install(_python())
    with tempfile.TemporaryDirectory(prefix="toolhub-tests-") as copy:
        os.chown(copy, account.pw_uid, account.pw_gid)  # tools keep their notes beside the tests
        for folder in ("tests", "testbed"):
            shutil.copytree(ROOT / folder, Path(copy, folder), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        home = tempfile.mkdtemp(prefix="home-", dir=copy)
        os.chown(home, account.pw_uid, account.pw_gid)
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *(f"tests/{name}" for name in wanted)]
        env = {"HOME": home, "TMPDIR": home, "PATH": os.defpath, "LANG": "C.UTF-8"}
        env |= {"PYTHONPATH": copy, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, cwd=copy, env=env, user=account.pw_uid, group=account.pw_gid, extra_groups=[]
        ).returncode


def _account() -> pwd.struct_passwd:
    """Return the account, made if need be."""
    try:
        return pwd.getpwnam(ACCOUNT)
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT], check=True)
        return pwd.getpwnam(ACCOUNT)


def _python() -> str:
    """Return a Python that others than root can run; root's own may live in its home."""
    for path in (*PYTHONS, *(shutil.which(f"python3.{minor}", path="/usr/local/bin") or "" for minor in (11, 12, 13))):
        if path and _version(path) >= (3, 11):
            return path
    raise SetupError("an ordinary user needs a Python 3.11 or newer outside of root's home, such as /usr/bin/python3")


def _version(python: str) -> tuple[int, ...]:
    script = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True)
    except OSError:
        return ()
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def _install(base: str) -> Path:
    """Return the Python of a virtual environment with this tree's toolhub and what its tests need."""
    pins = (ROOT / "pyproject.toml").read_text() + base
    venv = CACHE / f"user-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"
    python = venv / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not (venv / ".complete").exists():
        shutil.rmtree(venv, ignore_errors=True)
        print(f"as user: installing what the tests need into {venv}", flush=True)
        if subprocess.run([base, "-m", "venv", str(venv)], stdout=subprocess.DEVNULL).returncode != 0:
            apt_install("python3-venv")
            subprocess.run([base, "-m", "venv", "--clear", str(venv)], check=True)
        subprocess.run([*pip, f"{ROOT}[test]"], check=True)
        (venv / ".complete").touch()
    subprocess.run([*pip, "--no-deps", "--force-reinstall", str(ROOT)], check=True)
    return python


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (SetupError, subprocess.CalledProcessError) as problem:
        sys.exit(f"as user: {problem}")
