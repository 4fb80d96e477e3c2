"""Rules for a server's entry beyond the types of its fields. Messages never contain a value.

The rules across fields accept the raw entry and the validated one, so that they can be reported together with wrong
types. So they check only which keys exist, and compare only with known values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from toolhub.config.problems import Problem

LONGEST_NAME = 64

SPELLINGS = dict.fromkeys(("http", "streamable-http", "streamableHttp", "streamable_http"), "http")
_NEEDS = {"stdio": "command", "http": "url", "sse": "url", "builtin": "builtin"}
_ONLY_WITH = {"args": "command", "headers": "url", "options": "builtin"}


def transport_of(entry: Mapping[str, Any]) -> Any:
    """Return the transport that an entry names, in its canonical form, or the one that its keys imply."""
    named = entry.get("transport")
    if named is not None:
        return SPELLINGS.get(named, named) if isinstance(named, str) else named
    if entry.get("builtin") is not None:
        return "builtin"
    if entry.get("url") is None:
        return "stdio"
    return "sse" if _url_path(entry["url"]).rstrip("/").endswith("/sse") else "http"


def _url_path(url: object) -> str:
    try:
        return urlsplit(url).path if isinstance(url, str) else ""
    except ValueError:
        return ""


def broken_rules(entry: Mapping[str, Any], *, has_task_variables: bool) -> Iterator[Problem]:
    """Yield the contradictions between an entry's keys."""
    yield from _reach_rules(entry)
    for name, needed in _ONLY_WITH.items():
        if entry.get(name) and entry.get(needed) is None:
            yield Problem((name,), f"can only be used with '{needed}'")
    instances = entry.get("instances", 1)
    if isinstance(instances, int) and instances > 1 and entry.get("share") == "call":
        yield Problem(("instances",), "must be 1 with 'share: call': every call has a process of its own")
    yield from _sharing_rules(entry)
    if entry.get("share") == "hub" and has_task_variables:
        yield Problem(("share",), "a server shared by all tasks cannot use ${task.*}; use 'share: task'")


def _sharing_rules(entry: Mapping[str, Any]) -> Iterator[Problem]:
    if entry.get("preload") and entry.get("spawn", "exec") != "fork":
        yield Problem(("preload",), "can only be used with 'spawn: fork'")
    if entry.get("spawn") == "fork" and entry.get("command") is None:
        yield Problem(("spawn",), "can only be used with 'command'")
    is_stateful = entry.get("share", "task") == "task" if entry.get("stateful") is None else entry["stateful"]
    cache = entry.get("cache")
    scope = cache.get("scope") if isinstance(cache, Mapping) else getattr(cache, "scope", None)
    for key, value in ((("cache", "scope"), scope), (("coalesce",), entry.get("coalesce"))):
        if is_stateful and value == "hub":
            yield Problem(
                key,
                "'hub' shares answers between tasks, but this server keeps state for each task; set 'stateful: false' "
                "if it keeps none",
            )


def _reach_rules(entry: Mapping[str, Any]) -> Iterator[Problem]:
    given = [name for name in ("command", "url", "builtin") if entry.get(name) is not None]
    needed = _NEEDS.get(str(transport_of(entry)))
    if len(given) > 1:
        found = " and ".join(f"'{name}'" for name in given)
        yield Problem((), f"has {found}; exactly one of 'command', 'url' or 'builtin' is allowed")
    elif not given:
        yield Problem((), "needs exactly one of 'command' (a program), 'url' (a remote server) or 'builtin'")
    elif needed and needed not in given:
        yield Problem(("transport",), f"'{transport_of(entry)}' needs '{needed}', but the server has '{given[0]}'")


def check_name(name: str) -> str:
    if not name or len(name) > LONGEST_NAME or "/" in name or any(c.isspace() for c in name):
        raise ValueError(f"a server's name is 1 to {LONGEST_NAME} characters without whitespace or '/'")
    return name


def check_variable(name: str) -> str:
    if not name or "=" in name or "\0" in name:
        raise ValueError("the name of an environment variable is not empty and has no '='")
    return name


def check_url(url: str) -> str:
    """Check a server's URL. One that begins with a task variable is not complete yet and is accepted."""
    if not re.match(r"https?://[^/]|\$\{task\.", url, re.IGNORECASE):
        raise ValueError("expected a URL beginning with http:// or https://")
    return url


def check_origin(origin: str) -> str:
    """Check that an origin has the form in which browsers send it, because it is compared unchanged."""
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s*?#@A-Z]+", origin):
        raise ValueError("expected an origin such as http://localhost:3000: scheme, host and port, without a path")
    return origin


def check_builtin(target: str) -> str:
    if not re.fullmatch(r"\w[\w-]*|\w+(\.\w+)*:\w+(\.\w+)*", target):
        raise ValueError(
            "expected the name of an installed server, such as 'clock' (`toolhub servers` lists them), "
            "or 'package.module:factory'"
        )
    return target
