"""One server of the configuration."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from toolhub.config.interpolate import BadReference, Template, fill, map_texts, template_of, texts
from toolhub.config.problems import Key, Problem, format_key_path
from toolhub.config.redact import long_enough, named_secrets, redact, redacted_arguments, secret_arguments, url_secrets
from toolhub.config.rules import (
    broken_rules,
    check_builtin,
    check_name,
    check_url,
    check_variable,
    transport_of,
)
from toolhub.config.section import Count, Pause, Seconds, Section, Text
from toolhub.errors import ConfigError

Transport = Literal["stdio", "http", "sse", "builtin"]

TASK_FIELDS = frozenset({"env", "args", "headers", "url", "cwd"})
"""The fields that may contain `${task.*}`."""
SECRET_FIELDS = frozenset({"env", "args", "headers", "url", "options"})
"""In these fields a value from the environment counts as a secret. `${HOME}` in a `cwd` stays readable."""
_IDENTITY = (
    "transport",
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "builtin",
    "options",
    "inherit_env",
)


def _drop_nulls(value: Any) -> Any:
    """Drop null values: programs write null for an unset key, and it must not become the text "None"."""
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value


Variable = Annotated[str, AfterValidator(check_variable)]
Variables = Annotated[dict[Variable, Text], BeforeValidator(_drop_nulls)]
Headers = Annotated[dict[str, Text], BeforeValidator(_drop_nulls)]


class RestartSettings(Section):
    """After more than `max_deaths` in `window_s` the server is given up for `cooldown_s` (None: for ever)."""

    max_deaths: Count = 3
    """Deaths within `window_s` that are tolerated."""
    window_s: Seconds = 60
    """The time in which deaths are counted."""
    backoff_s: Pause = 0.1
    """Pause before the second start in a row; it doubles each time."""
    max_backoff_s: Pause = 5
    """The longest pause between two starts."""
    cooldown_s: Seconds | None = 60
    """One more start is tried after this time; None: never."""


class ToolSettings(Section):
    """Declarations about one tool. None: the server's annotations decide."""

    read_only: bool | None = None
    """The tool changes nothing, so a call may be repeated, shared and cached."""
    idempotent: bool | None = None
    """A second equal call changes nothing more, so a call may be repeated."""
    timeout_s: Seconds | None = None
    """For one call of this tool, waiting included."""
    speculative: Literal["allow", "deny"] | None = None
    """`allow`: calls may be made before they are asked for; for read-only, cheap tools of public things. `deny`:
    nothing begins early. None: only what the server itself offers to begin with a part of a call's arguments."""


class ToolRules(Section):
    """Which tools of a server are listed (None: all), and declarations about them."""

    allow: list[str] | None = None
    """Only these tools are listed and may be called; None: all."""
    deny: list[str] = Field(default_factory=list)
    """These tools are neither listed nor called."""
    policy: dict[str, ToolSettings] = Field(default_factory=dict)
    """Declarations about single tools, by name. They override the server's annotations."""


class CacheSettings(Section):
    """Cache the answers of read-only tools for `ttl_s`. Errors are never cached."""

    ttl_s: Seconds = 300
    """How long an answer is used."""
    max_bytes: Count = 64 * 1024 * 1024
    """Memory for answers; the oldest go first."""
    scope: Literal["task", "hub"] = "task"
    """Who shares answers: the calls of one task, or of all tasks."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which texts of a server came from references. The loader passes it as validation context."""

    inserted: frozenset[str] = frozenset()
    templates: Mapping[Key, Template] = field(default_factory=dict)


class ServerSpec(Section):
    """How to reach a server, how to share it, and its timeouts.

    Neither `repr` nor errors show values from the environment.
    """

    name: Annotated[str, AfterValidator(check_name)]
    """The key of its mapping under `servers`."""
    transport: Transport = "stdio"
    """`stdio`, `http`, `sse` or `builtin`. Follows from `command`, `url` or `builtin`. `type` is the same key."""
    command: str | None = Field(default=None, min_length=1)
    """A program that speaks MCP over stdin and stdout."""
    args: list[Text] = Field(default_factory=list)
    """Its arguments."""
    env: Variables = Field(default_factory=dict, repr=False)
    """Its environment variables, besides a few harmless ones (PATH, HOME, LANG, ...) of the hub."""
    cwd: str | None = Field(default=None, min_length=1)
    """Its working directory; None: that of the hub."""
    inherit_env: list[Variable] = Field(default_factory=list)
    """Further variables that the server gets from the hub's environment."""
    url: Annotated[str, AfterValidator(check_url)] | None = None
    """The address of a remote server. A URL that ends in `/sse` means the older transport."""
    headers: Headers = Field(default_factory=dict, repr=False)
    """HTTP headers of every request to a remote server."""
    builtin: Annotated[str, AfterValidator(check_builtin)] | None = None
    """A server that runs in the hub's own process: the short name of an installed one, or `package.module:factory`.

    `options` are the factory's keyword arguments."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """The builtin server's keyword arguments."""
    share: Literal["task", "hub", "call"] = "task"
    """Who uses one session: one task, all tasks of the hub, or one call."""
    instances: Count = 1
    """Number of processes, for servers that answer one call at a time."""
    stateful: bool | None = None
    """Whether a new process has forgotten something. None: yes with `share: task`, else no."""
    keep_warm: bool = False
    """Start it with the task (or the hub), and do not stop it when it is idle."""
    spawn: Literal["exec", "fork"] = "exec"
    """How a process starts. `fork`: from an interpreter that has loaded the server's libraries."""
    preload: list[str] = Field(default_factory=list)
    """With `spawn: fork`: modules to load before the fork, instead of those that the first process imports."""
    protocol: Literal["legacy", "auto"] = "legacy"
    """`auto` asks for the MCP revision of 2026 first, which some servers do not survive."""
    start_timeout_s: Seconds = 30
    """From the start of the process to the end of the handshake."""
    call_timeout_s: Seconds = 300
    """For one call, waiting included, unless the caller asks for another."""
    stop_timeout_s: Seconds = 2
    """Time to end after the end of stdin, and again after SIGTERM."""
    idle_s: Seconds | None = 600
    """A session that is unused for this time is stopped; None: never."""
    concurrency: Count = 64
    """Calls in flight per session."""
    hub_concurrency: Count | None = None
    """Calls in flight to this server by all tasks together; None: only the hub's limit."""
    adaptive: bool = False
    """Find `hub_concurrency` by measuring: fewer calls at once when answers get slower, or at a 429 or 503."""
    coalesce: Literal["off", "task", "hub"] | None = None
    """Execute equal calls in flight once, within a task or the hub, for safe tools; None: `hub`, `task` if stateful."""
    cache: CacheSettings | None = None
    """Cache answers of read-only tools; None: no cache."""
    restart: RestartSettings = Field(default_factory=RestartSettings)
    """When a server that dies is given up."""
    tools: ToolRules = Field(default_factory=ToolRules)
    """Which tools are offered, and declarations about them."""
    disabled: bool = False
    """Ignore this server."""
    description: str | None = None
    """A note for people."""

    _inserted: frozenset[str] = PrivateAttr(default=frozenset())
    _templates: Mapping[Key, Template] = PrivateAttr(default_factory=dict)
    _task_variables: frozenset[str] = PrivateAttr(default=frozenset())
    _has_cwd_per_task: bool = PrivateAttr(default=False)
    _template_fingerprint: str = PrivateAttr(default="")

    @model_validator(mode="before")
    @classmethod
    def _settle_transport(cls, data: Any) -> Any:
        return {**data, "transport": transport_of(data)} if isinstance(data, Mapping) else data

    def model_post_init(self, context: Any, /) -> None:
        origin = context if isinstance(context, Origin) else Origin(templates=self._find_templates())
        self._inserted, self._templates = origin.inserted, origin.templates

    @model_validator(mode="after")
    def _check_rules(self) -> ServerSpec:
        problems = [*broken_rules(dict(self), has_task_variables=self.uses_task_variables)]
        if problems:
            raise ValidationError.from_exception_data(self.name, [_as_pydantic(p) for p in problems])
        return self

    @property
    def is_stateful(self) -> bool:
        """Whether the server keeps state in its process. A server with `share: task` does unless it says otherwise."""
        return self.share == "task" if self.stateful is None else self.stateful

    @property
    def sharing(self) -> Literal["off", "task", "hub"]:
        """Between which calls answers may be shared: `coalesce`, or a default that depends on `is_stateful`."""
        return self.coalesce or ("task" if self.is_stateful else "hub")

    @property
    def uses_task_variables(self) -> bool:
        return bool(self._templates)

    @property
    def task_variables(self) -> frozenset[str]:
        """The environment variables that differ from task to task."""
        return self._task_variables

    @property
    def has_cwd_per_task(self) -> bool:
        """Whether the working directory differs from task to task."""
        return self._has_cwd_per_task

    @property
    def template_fingerprint(self) -> str:
        """`fingerprint()` before the task's values were filled in. It is the same for all tasks."""
        return self._template_fingerprint or self.fingerprint()

    @property
    def secrets(self) -> frozenset[str]:
        """The secrets of this server. `redact` removes them from texts."""
        named = (*named_secrets(self.env), *named_secrets(self.headers), *named_secrets(self.options))
        return long_enough(self._inserted.union(named, secret_arguments(self.args), url_secrets(self.url or "")))

    @property
    def command_line(self) -> str:
        """The command as a shell takes it, without secrets; "" for a server without one."""
        if self.command is None:
            return ""
        command = redact(shlex.join([self.command, *redacted_arguments(self.args)]), self.secrets)
        return f"cd {shlex.quote(self.cwd)} && {command}" if self.cwd and self.cwd != "." else command

    def for_task(self, values: Mapping[str, str]) -> ServerSpec:
        """Return the spec with `${task.<name>}` replaced; the spec itself if there is nothing to replace.

        Raises ConfigError for a variable that is not in `values`.
        """
        if not self._templates:
            return self

        def replace(key: Key, text: str) -> str:
            template = self._templates.get(key)
            return self._fill(template, values, key) if template and text == _text_of(template) else text

        filled = self.model_copy(update=map_texts(self._task_texts(), replace))
        filled._templates = {}
        filled._task_variables = frozenset(str(key[1]) for key in self._templates if key[0] == "env")
        filled._has_cwd_per_task = ("cwd",) in self._templates
        filled._template_fingerprint = self.fingerprint()
        return filled

    def fingerprint(self) -> str:
        """Return 16 hex digits over all that defines the process or connection. Equal ones may share a session."""
        identity = {name: getattr(self, name) for name in _IDENTITY}
        canonical = json.dumps(identity, sort_keys=True, default=str)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def _fill(self, template: Template, values: Mapping[str, str], key: Key) -> str:
        try:
            return fill(template, values)
        except BadReference as error:
            raise ConfigError(str(error), key=format_key_path(("servers", self.name, *key))) from None

    def _task_texts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in TASK_FIELDS}

    def _find_templates(self) -> dict[Key, Template]:
        """Find every `${task.*}`. Used for a spec that was built in code."""
        found = ((key, template_of(text)) for key, text in texts(self._task_texts()))
        return {key: template for key, template in found if len(template) > 1}

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        secrets = self.secrets
        for name, value in super().__repr_args__():
            public = redacted_arguments(value) if name == "args" else value
            yield name, map_texts(public, lambda _, text: redact(text, secrets))


def _text_of(template: Template) -> str:
    return "".join(map(str, template))


def _as_pydantic(problem: Problem) -> InitErrorDetails:
    kind = PydanticCustomError("rule", "{reason}", {"reason": problem.message})
    return InitErrorDetails(type=kind, loc=problem.key, input=None)
