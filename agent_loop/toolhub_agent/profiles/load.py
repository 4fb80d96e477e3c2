"""Finding a profile, putting `--set` values into it, and reading it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from toolhub.config.document import read_document
from toolhub.config.explain import validate
from toolhub.config.problems import Problem, did_you_mean, first_of_each_key, kind_of
from toolhub.errors import ConfigError
from toolhub_agent.profiles.settings import Profile

_HERE = Path(__file__).parent
# In a wheel they lie beside this file, in a checkout among the examples.
FOLDERS = (_HERE / "known", _HERE.parents[2] / "configs" / "llm")
_ONLY = "server"


def profile_names() -> list[str]:
    return sorted(path.stem for path in _files())


def load_profile(name: str, overrides: Iterable[str] = ()) -> Profile:
    """name: of a profile that comes with toolhub, or the path of a YAML file.

    overrides: `key=value` with YAML values. `model=...` and `router.port=...` set what they name, `NAME.key=...` a key
    of one server, any other key that of all servers.
    Raises ConfigError, naming file and line, for what is wrong.
    """
    document = read_document(_path_of(name))
    if not isinstance(document.data, Mapping):
        raise document.source.error([Problem((), f"expected a mapping, found {kind_of(document.data)}")])
    data = copy.deepcopy(dict(document.data))
    servers = data.get("servers") or {_ONLY: {}}
    data["servers"] = {key: dict(value or {}) for key, value in servers.items()} if _is_nested(servers) else servers
    for override in overrides:
        _apply(data, override)
    profile, problems = validate(Profile, _merged(data))
    if profile is None:
        raise document.source.error(first_of_each_key(problems))
    return profile


def _files() -> list[Path]:
    return [path for folder in FOLDERS if folder.is_dir() for path in folder.glob("*.yaml")]


def _path_of(name: str) -> Path:
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name)
    known = {path.stem: path for path in _files()}
    if name not in known:
        raise ConfigError(
            f"no profile {name!r};{did_you_mean(name, list(known))} there are: {', '.join(sorted(known))}"
        )
    return known[name]


def _is_nested(servers: Any) -> bool:
    return isinstance(servers, Mapping) and all(
        value is None or isinstance(value, Mapping) for value in servers.values()
    )


def _merged(data: dict[str, Any]) -> dict[str, Any]:
    """Every server with what is common to all of them."""
    common = data.pop("common", None) or {}
    if not isinstance(common, Mapping):
        raise ConfigError(f"expected a mapping, found {kind_of(common)}", key="common")
    if _is_nested(data["servers"]):
        data["servers"] = {name: {**common, **own} for name, own in data["servers"].items()}
    return data


def _apply(data: dict[str, Any], override: str) -> None:
    key, found, text = override.partition("=")
    if not found or not key:
        raise ConfigError(f"expected KEY=VALUE, found {override!r}", key="--set")
    path, value = key.split("."), _parsed(key, text)
    servers: Any = data["servers"] if _is_nested(data["servers"]) else {}
    if path[0] in servers and len(path) > 1:
        _put(servers, path, value)
    elif path[0] in ("common", "router") or path[0] in Profile.model_fields:
        _put(data, path, value)
    else:
        _put(data, ["common", *path], value)
        for own in servers.values():
            _drop(own, path)


def _parsed(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text) if text else None
    except yaml.YAMLError as exc:
        raise ConfigError("the value is not valid YAML", key=f"--set {key}") from exc


def _put(data: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        inner = data.get(part)
        data[part] = inner = dict(inner) if isinstance(inner, Mapping) else {}
        data = inner
    data[path[-1]] = value


def _drop(data: dict[str, Any], path: list[str]) -> None:
    """A server's own value would win over the one for all."""
    for part in path[:-1]:
        data = data.get(part) or {}
        if not isinstance(data, dict):
            return
    data.pop(path[-1], None)
