"""Model server profiles: what a profile may say, and how one is found and read.

A profile says what a server shall do, not the flags of an engine. Unknown keys are errors. Sizes are tokens or GiB.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, model_validator

from toolhub.config.document import read_document
from toolhub.config.explain import validate
from toolhub.config.problems import Problem, did_you_mean, first_of_each_key, kind_of
from toolhub.config.section import Count, Length, Section, Text
from toolhub.errors import ConfigError

# --- Settings ---------------------------------------------------------------------------------------------------------
# What a profile says: the meaning, not the flags of an engine. Unknown keys are errors; sizes are tokens or GiB.

ProfileEngine = Literal["vllm", "sglang", "dynamo", "llamacpp"]
"""`dynamo`: vLLM as a worker of NVIDIA Dynamo."""
RouterKind = Literal["sgl-model-gateway", "vllm-router", "dynamo"]
Port = Annotated[int, Field(ge=1, le=65535)]
Share = Annotated[float, Field(gt=0, le=1)]


def _check_word(text: str) -> str:
    """What begins with a dash would be read as a flag."""
    if not text or text.startswith("-") or not text.isprintable():
        raise ValueError("must be a name or a path, and not begin with a dash")
    return text


Word = Annotated[str, AfterValidator(_check_word)]


class Chunking(Section):
    """Prefill in chunks, so that a long prompt does not make the answers of others wait."""

    tokens: Count | None = None
    """The largest chunk; None: the engine's own."""
    dynamic: bool = False
    """The chunk follows the load (vLLM) or what is computed already (SGLang, with pipeline_parallel)."""
    long_prompt_tokens: Count | None = None
    """vLLM: prompts longer than this get chunks of this size while others wait; a fair share at least if `dynamic`."""


class Offload(Section):
    """A second tier for KV blocks in the host's memory. Either gib or ratio."""

    gib: Count | None = None
    ratio: Annotated[float, Field(gt=0)] | None = None
    """SGLang: times the size of the cache on the accelerator."""
    write_policy: Literal["write_back", "write_through", "write_through_selective"] | None = None

    @model_validator(mode="after")
    def _has_one_size(self) -> Offload:
        if (self.gib is None) == (self.ratio is None):
            raise ValueError("name one size: gib or ratio")
        return self


class Disaggregation(Section):
    """One half of a server that is split into prefill and decode."""

    role: Literal["prefill", "decode"]
    transfer: Literal["nixl", "mooncake"] = "nixl"
    port: Port | None = None
    """SGLang: where decode servers ask for a transfer. vLLM: NIXL's side channel; None: its own (5600)."""
    ib_device: Word | None = None


class ServerProfile(Section):
    """One model server. nodes: the hosts that it spans; the first one answers requests."""

    engine: ProfileEngine
    program: Word | None = None
    """Instead of `vllm`, `python3` or `llama-server` on the PATH."""
    nodes: list[Word] = Field(default=["127.0.0.1"], min_length=1)
    port: Port = 8000
    gpus: list[Length] = []
    """Those it may see; empty: all."""
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    context_tokens: Count | None = None
    max_running: Count | None = None
    """Requests at once."""
    memory_share: Share | None = None
    """Of the accelerator's memory."""
    dtype: Word | None = None
    kv_dtype: Word | None = None
    block_tokens: Count | None = None
    """Of the KV cache; a prefix is reused in whole blocks."""
    eager: bool = False
    """Neither compile nor capture graphs: a quick start, slower answers."""
    prefix_caching: bool = True
    chunking: Chunking = Chunking()
    offload: Offload | None = None
    disaggregation: Disaggregation | None = None
    priority: bool = False
    """Serve by the priority of requests; agents' prefetches then come last."""
    pins: bool = False
    """toolhub's scheduler for vLLM, which keeps a conversation's blocks while its tools run."""
    session_cache: bool = False
    """SGLang: what belongs to a live session is evicted last."""
    metrics: bool = True
    cached_tokens: bool = True
    """Tell with each answer how much of its prompt was in the cache."""
    tool_parser: Word | None = None
    reasoning_parser: Word | None = None
    kv_events_port: Port | None = None
    """Where a worker tells a KV-aware router what it keeps."""
    env: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], Text] = {}
    extra_args: list[Text] = []
    """Put behind all others, as they are."""

    @property
    def is_local(self) -> bool:
        return len(self.nodes) == 1 and is_loopback(self.nodes[0])

    @property
    def listens_on(self) -> str:
        return self.nodes[0] if self.is_local else "0.0.0.0"  # noqa: S104 - others are meant to reach it

    @property
    def url(self) -> str:
        return f"http://{self.nodes[0]}:{self.port}"

    def role(self) -> str | None:
        return self.disaggregation.role if self.disaggregation else None


class RouterProfile(Section):
    """What stands in front of several servers and keeps a conversation where its prefix is."""

    kind: RouterKind
    node: Word = "127.0.0.1"
    port: Port = 8080
    policy: Word | None = None
    """None: the router's own."""
    decode_policy: Word | None = None
    """For the decode half; None: the same."""
    affinity_s: Count | None = None
    """Dynamo: how long an idle session keeps its worker."""
    discovery: Literal["file", "etcd"] | None = None
    """Dynamo: how workers and router find each other; `file` needs one machine and no service."""
    extra_args: list[Text] = []

    @property
    def listens_on(self) -> str:
        return self.node if is_loopback(self.node) else "0.0.0.0"  # noqa: S104 - others are meant to reach it

    @property
    def url(self) -> str:
        return f"http://{self.node}:{self.port}"


class Profile(Section):
    """A way to serve one model."""

    description: str
    checked: str
    """Against which versions the flags were checked, and what could not be."""
    model: Word
    served_name: Word | None = None
    """What requests call it; None: the same."""
    servers: dict[str, ServerProfile] = Field(min_length=1)
    router: RouterProfile | None = None


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


# --- Reading a profile ------------------------------------------------------------------------------------------------
# Finding a profile, putting `--set` values into it, and reading it.

_HERE = Path(__file__).parent
# In a wheel they lie beside this file, in a checkout among the examples.
FOLDERS = (_HERE / "known", _HERE.parents[2] / "configs" / "llm")
_ONLY_SERVER = "server"


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
    servers = data.get("servers") or {_ONLY_SERVER: {}}
    data["servers"] = {key: dict(value or {}) for key, value in servers.items()} if _is_nested(servers) else servers
    for override in overrides:
        _apply_override(data, override)
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


def _apply_override(data: dict[str, Any], override: str) -> None:
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
