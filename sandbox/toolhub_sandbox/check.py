"""A check for `toolhub doctor`: which isolation is really in force, seen from inside a sandbox."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from toolhub_sandbox.model import Isolation
from toolhub_sandbox.protocol import Sandbox

_PROBE = """
import json as _json, os as _os, socket as _socket
_status = dict(_line.split(":", 1) for _line in open("/proc/self/status") if ":" in _line)
def _connects():
    with _socket.socket() as _s:
        _s.settimeout(1)
        try:
            _s.connect(("192.0.2.1", 80))  # TEST-NET-1: never answers, but without a route it fails at once
        except TimeoutError:
            return True
        except OSError as _exc:
            return _exc.errno not in (101, 1, 13)
        return True
def _writable(_path):
    return _os.access(_path, _os.W_OK)
print(_json.dumps({
    "uid": _os.getuid(), "capabilities": _status["CapEff"].strip(), "seccomp": _status["Seccomp"].strip(),
    "no_new_privs": _status["NoNewPrivs"].strip(), "pid": _os.getpid(), "processes": len(
        [_name for _name in _os.listdir("/proc") if _name.isdigit()]), "network": _connects(),
    "system_writable": _writable("/usr"), "home_writable": _writable("/home/user"),
}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """What was found. A finding: name, `ok` or `weaker`, a sentence."""

    isolation: Isolation
    first_result_s: float
    findings: tuple[tuple[str, str, str], ...]


async def check(sandbox: Sandbox, isolation: Isolation, began: float) -> Check:
    """Run a probe in a fresh sandbox. began: `time.perf_counter()` before it was asked for."""
    execution = await sandbox.exec_code(_PROBE, timeout=10)
    seconds = time.perf_counter() - began
    findings = [
        ("sandbox", "ok" if isolation.is_secure else "weaker", f"{isolation.backend}: {isolation.summary}"),
        ("", "ok", f"limits by {isolation.limits}; first result after {seconds * 1e3:.0f} ms"),
    ]
    try:
        seen = json.loads(execution.stdout)
    except ValueError:
        seen = None
        findings.append(("", "weaker", f"the probe failed: {execution.error}"))
    if seen is not None and isolation.backend != "e2b":
        findings += [("", *finding) for finding in _judged(seen)]
    findings += [("", "weaker", text) for text in isolation.weaker]
    return Check(isolation, seconds, tuple(findings))


def _judged(seen: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        (seen["uid"] != 0, f"runs as uid {seen['uid']}"),
        (int(seen["capabilities"], 16) == 0, f"capabilities {seen['capabilities']}"),
        (seen["seccomp"] == "2", "seccomp filter" if seen["seccomp"] == "2" else "no seccomp filter"),
        (seen["no_new_privs"] == "1", "no_new_privs" if seen["no_new_privs"] == "1" else "may gain privileges"),
        (seen["processes"] < 10, f"sees {seen['processes']} processes"),
        (not seen["network"], "has a network" if seen["network"] else "no network"),
        (not seen["system_writable"], "can write to /usr" if seen["system_writable"] else "read-only system"),
        (seen["home_writable"], "own home" if seen["home_writable"] else "cannot write to /home/user"),
    ]
    good = ", ".join(text for holds, text in facts if holds)
    bad = ", ".join(text for holds, text in facts if not holds)
    found = [("ok", f"seen from inside: {good}")] if good else []
    return found + ([("weaker", f"seen from inside: {bad}")] if bad else [])
