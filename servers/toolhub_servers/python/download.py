"""Download from the internet inside a sandbox, with its wget, its curl or its Python."""

from __future__ import annotations

import posixpath
import re
import shlex
from urllib.parse import urlsplit

from toolhub_sandbox import HOME, CommandResult, Sandbox

# For files of about 100 MB over a slow line. Agents have longer timeouts.
FETCH_TIMEOUT = 300.0
DEFAULT_NAME = "downloaded_file"
LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")

# The file gets its name when it is complete: a failed download leaves the old file.
_SCRIPT = """\
url={url} target={target} part={part}
if [ -d "$target" ]; then echo "$target is a directory" >&2; exit 1; fi
if command -v wget >/dev/null; then wget -nv -T 30 -t 3 -O "$part" -- "$url"
elif command -v curl >/dev/null; then
  curl -fsSL --proto =http,https --proto-redir =http,https --connect-timeout 30 --retry 2 -o "$part" --url "$url"
else python3 -c {python} "$url" "$part"
fi
code=$?
if [ $code = 0 ]; then mv -f -- "$part" "$target"; else rm -f -- "$part"; (exit $code); fi
"""
_PYTHON = """\
import shutil, sys, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=30) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target)
except Exception as exc:
    sys.exit(str(exc))
"""
_PROBE = "cat /proc/net/dev; env | grep -i '_proxy='; true"
_INTERFACE = re.compile(r"^\s*(\S+):", re.MULTILINE)
_PROXY = re.compile(r"^(https?|all)_proxy=.", re.MULTILINE | re.IGNORECASE)


def check_url(url: str) -> None:
    """Check a URL. Raises ValueError with the reason if it cannot be downloaded."""
    try:
        parts = urlsplit(url)
        scheme, host, _ = parts.scheme, parts.hostname, parts.port
    except ValueError as exc:
        raise ValueError(f"it is not a valid URL: {exc}") from None
    if scheme not in ("http", "https") or not host:
        raise ValueError("only URLs that start with http:// or https:// can be downloaded")
    # urlsplit ignores tabs, newlines and white space around the URL. The program that downloads may not.
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("it has white space or control characters in it")


def target_of(url: str, path: str) -> str:
    """Return the path of the file: `path` with the URL's last part, or `path` itself if that has an extension."""
    target = posixpath.join(HOME, path)
    if path.endswith("/") or not posixpath.splitext(posixpath.normpath(target))[1]:
        name = posixpath.basename(urlsplit(url).path)
        target = posixpath.join(target, name if name not in ("", ".", "..") else DEFAULT_NAME)
    return posixpath.normpath(target)


async def fetch(sandbox: Sandbox, url: str, target: str) -> CommandResult:
    """Download into the sandbox. The folder of `target` must exist. Raises SandboxError."""
    return await sandbox.run_command(script(url, target), timeout=FETCH_TIMEOUT)


def script(url: str, target: str) -> str:
    """Return the bash script that downloads."""
    return _SCRIPT.format(
        url=shlex.quote(url),
        target=shlex.quote(target),
        part=shlex.quote(f"{target}.part"),
        python=shlex.quote(_PYTHON),
    )


async def is_cut_off(sandbox: Sandbox, url: str) -> bool:
    """Whether the sandbox has no network that could lead to `url`. Called after a failure. Raises SandboxError."""
    if LOOPBACK.fullmatch(urlsplit(url).hostname or ""):
        return False
    return is_offline((await sandbox.run_command(_PROBE)).stdout)


def is_offline(probe: str) -> bool:
    """Whether the probe's output shows only the loopback interface, and no proxy."""
    interfaces = set(_INTERFACE.findall(probe))
    return interfaces <= {"lo"} and "lo" in interfaces and not _PROXY.search(probe)
