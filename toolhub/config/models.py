"""The whole configuration, and the sections `hub` and `limits`. Times are seconds, sizes bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr

from toolhub.config.agent import AgentSettings
from toolhub.config.llm import LlmSettings
from toolhub.config.redact import long_enough, named_secrets
from toolhub.config.rules import check_origin
from toolhub.config.sandbox import SandboxSettings
from toolhub.config.section import Count, Length, Pause, Seconds, Section, Weight
from toolhub.config.server import ServerSpec
from toolhub.config.speculation import SpeculationSettings
from toolhub.private_files import default_state_folder
from toolhub.tool_names import Prefix

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
HomePath = Annotated[Path, AfterValidator(lambda path: Path(os.path.expanduser(path)))]
WebOrigin = Annotated[str, AfterValidator(check_origin)]
Port = Annotated[Length, Field(le=65535)]


class HttpLimits(Section):
    """Limits on the size and time of requests. They also bound clients that have not shown a token yet."""

    head_bytes: Annotated[Count, Field(ge=1024)] = 64 * 1024
    """The request line and the headers of one request."""
    head_timeout_s: Seconds = 10
    """From the first byte of a request, or from the connection, to the end of its headers."""
    body_bytes: Count = 64 * 1024 * 1024
    """The body of one request. A larger one is refused with 413."""
    body_timeout_s: Seconds = 120
    """From the end of the headers to the end of the body."""
    write_timeout_s: Seconds = 300
    """A TCP client that reads nothing of a response for this time is disconnected."""
    connections: Count = 2048
    """Open at once, per listener; at most a quarter of the descriptors that the system allows."""
    connections_per_address: Count = 1024
    """Open at once from one client address."""


class CassetteSettings(Section):
    """Record the tool exchanges of every task, or replay them without starting a server."""

    dir: HomePath
    """The folder of the recordings: one file per task."""
    mode: Literal["record", "replay"]
    """`record` adds recordings. `replay` answers from them; a call that is not recorded fails."""
    time_scale: Pause = 0
    """In a replay: 1 takes the recorded times, 0.5 half of them, 0 answers at once."""


class SharedResultsSettings(Section):
    """Keep results of read-only tools on disk, for other tasks, attempts and hubs. Servers with state are left out."""

    scope: Literal["hub", "run"] = "hub"
    """Who shares results: all tasks, or the tasks of one run, by its label."""
    ttl_s: Seconds = 86_400
    """How long a result is used; for a server with `cache` its `ttl_s` counts."""
    max_bytes: Count = 1024 * 1024 * 1024
    """Size of all results; the least recently used go first."""
    dir: HomePath | None = None
    """The folder of the file; None: the state directory."""


class HubSettings(Section):
    """The hub process: its addresses, its state directory, its log, its shutdown."""

    max_starts: Count | None = None
    """Servers that may start at once; None: two per core."""
    state_dir: HomePath | None = None
    """The folder of journal and catalog; None: see `state_path`."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """The address to listen on. Any other than a loopback address needs a token; one is made if none is set."""
    port: Port = 8765
    """0 takes any free port."""
    uds: HomePath | None = None
    """Also listen on this unix socket, with mode 0600."""
    token: SecretStr | None = Field(default=None, min_length=1)
    """The bearer token that clients must send. None: one is made if other machines or sandboxed code reach the hub."""
    allowed_origins: list[WebOrigin] = Field(default_factory=list)
    """Web pages that may use a hub without a token from a browser on this machine, such as `http://localhost:6274`."""
    allow_inline_servers: bool = False
    """Let TCP clients bring their own servers, that is, start programs here. Unix sockets always may."""
    http: HttpLimits = Field(default_factory=HttpLimits)
    """Limits on what a client may send."""
    tool_prefix: Prefix = "collision"
    """When MCP clients see a tool as `server__tool`: `always`, where servers have tools of one name, or `never`."""
    tools: Literal["all", "search"] = "all"
    """What MCP clients see: `all` tools, or two with which a model can `search` for tools and call them."""
    shared_results: SharedResultsSettings | None = None
    """Share results of read-only tools across tasks and attempts; None: not beyond `cache` of a server."""
    cassette: CassetteSettings | None = None
    """Record or replay the tool exchanges of every task; None: neither."""
    drain_s: Pause = 5
    """Time for running calls to end when the hub stops."""
    log_level: LogLevel = "info"
    """Messages below this level are not written."""

    _default_state: Path = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._default_state = default_state_folder(context if isinstance(context, Mapping) else os.environ)

    @property
    def start_limit(self) -> int:
        return self.max_starts or 2 * _cores()

    @property
    def state_path(self) -> Path:
        """`state_dir`, or the folder of the XDG base directory specification."""
        return self.state_dir or self._default_state


def _cores() -> int:
    # A container or a batch job may have fewer cores than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Limits(Section):
    """Limits of the whole hub."""

    task_lease_s: Seconds = 900
    """A task whose client is silent for this time is closed with its processes and sandboxes."""
    concurrency: Count = 256
    """Calls in flight."""
    queue: Length = 1024
    """Calls that may wait; 0 refuses every call that cannot run at once."""
    task_concurrency: Count = 64
    """Calls in flight per task."""
    run_weights: dict[str, Weight] = Field(default_factory=dict)
    """Shares of runs, by the run's label. A run that is not listed has 1."""
    processes: Count | None = None
    """Processes of servers. Idle ones are ended to make room."""
    memory_bytes: Count | None = None
    """Memory of all processes below the hub. Shared pages count once."""
    open_files: Count | None = None
    """Descriptors of the hub's process; None: nine tenths of the system's limit."""
    max_tasks: Count = 1000
    """Tasks that may be open at once."""
    max_result_bytes: Count = 64 * 1024 * 1024
    """The largest answer of a server. A larger one fails the call."""


class Config(Section):
    """A whole configuration, without disabled servers."""

    hub: HubSettings = Field(default_factory=HubSettings)
    """The hub process."""
    servers: dict[str, ServerSpec] = Field(default_factory=dict)
    """The tool servers, by the name that clients call them by."""
    limits: Limits = Field(default_factory=Limits)
    """Limits of the whole hub."""
    speculation: SpeculationSettings = Field(default_factory=SpeculationSettings)
    """Which work may begin before a call asks for it."""
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    """Where a model's code runs."""
    llm: LlmSettings | None = None
    """None: no LLM proxy, and `toolhub run` needs --llm."""
    agent: AgentSettings = Field(default_factory=AgentSettings)
    """How `toolhub run` plays an agent."""

    @property
    def secrets(self) -> frozenset[str]:
        """The secrets of the hub, its servers, model servers and sandboxes. `redact` removes them from texts."""
        found: set[str] = set().union(*(server.secrets for server in self.servers.values()))
        found.update(*(named_secrets(profile.env) for profile in self.sandbox.profiles.values()))
        found.update(self.llm.secrets if self.llm is not None else ())
        keys = (self.hub.token, self.sandbox.e2b.api_key)
        found.update(key.get_secret_value() for key in keys if key is not None)
        return long_enough(found)
