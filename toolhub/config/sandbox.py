"""The `sandbox` section: backend, profiles and limits. Times are seconds, sizes bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from toolhub.config.problems import did_you_mean, kind_of
from toolhub.config.rules import check_variable
from toolhub.config.section import Count, Length, Seconds, Section, Text

Backend = Literal["local", "bwrap", "subprocess", "e2b"]
MIB = 1 << 20
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?")

_UIDS = re.compile(r"(\d{1,10})-(\d{1,10})")
_NO_UID = (1 << 32) - 1


def _check_module(name: str) -> str:
    if not _MODULE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a Python module")
    return name


def _check_host(host: str) -> str:
    _, _, port = host.partition(":")
    if not _HOST.fullmatch(host) or (port and not 0 < int(port) < 1 << 16):
        raise ValueError(f"{host!r} is not a host: write example.org, *.example.org or example.org:8443")
    return host.lower()


def _check_folder(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} must be an absolute path")
    return path


def _read_network(value: Any) -> Any:
    """Choose the kind here. A union's errors would name every kind, under keys that are not in the file."""
    if isinstance(value, Mapping) and value:
        return AllowedHosts.model_validate(value)
    if value in ("none", "host") or isinstance(value, AllowedHosts):
        return value
    found = "another string" if isinstance(value, str) else kind_of(value)
    near = did_you_mean(value, ("none", "host")) if isinstance(value, str) else ""
    raise ValueError(
        f"expected 'none', 'host' or the key 'allow' with a list of hosts, found {found}{near and ';' + near}"
    )


def _check_uids(text: str) -> str:
    found = _UIDS.fullmatch(text)
    if found is None or not 0 < int(found[1]) <= int(found[2]) < _NO_UID:
        raise ValueError(f"{text!r} is not a range of uids: write FIRST-LAST, without root, such as 60578-60986")
    return text


Module = Annotated[str, AfterValidator(_check_module)]
Host = Annotated[str, AfterValidator(_check_host)]
Folder = Annotated[str, AfterValidator(_check_folder)]
Variable = Annotated[str, AfterValidator(check_variable)]
Positive = Seconds  # the same rules, whatever is counted


class AllowedHosts(Section):
    """Only these hosts can be reached, through a proxy in the variables HTTP_PROXY and HTTPS_PROXY."""

    allow: list[Host] = Field(default_factory=list, min_length=1, validate_default=True)
    """`example.org` or `*.example.org` (all hosts below it), with an optional `:port`; default: 80 and 443."""


class SandboxProfile(Section):
    """One kind of sandbox: its preloaded modules, its network and its limits."""

    preload: list[Module] = Field(default_factory=list)
    """Modules that are imported once. All sandboxes of the profile share their memory."""
    pool: Length = 4
    """Sandboxes kept ready after the first use of the profile."""
    network: Annotated[Literal["none", "host"] | AllowedHosts, BeforeValidator(_read_network)] = "none"
    """`none`; `host`: this machine's network, with its local services; or a list of hosts."""
    env: Annotated[dict[Variable, Text], BeforeValidator(lambda value: value or {})] = Field(
        default_factory=dict, repr=False
    )
    """Environment variables inside. Nothing of the hub's own environment is passed on."""
    read_only: list[Folder] = Field(default_factory=list)
    """Folders of the host that can be read inside, with the same path."""
    memory_bytes: Count = 1024 * MIB
    """Memory of all processes in one sandbox."""
    processes: Count = 128
    """Processes and threads in one sandbox."""
    cpus: Annotated[Positive, Field(le=1024)] | None = None
    """Cores that one sandbox may use, such as 0.5; needs cgroups. None: no limit."""
    home_bytes: Count = 512 * MIB
    """Size of /home/user, which is kept in memory."""
    tmp_bytes: Count = 256 * MIB
    """Size of /tmp, which is kept in memory."""
    output_bytes: Count = MIB
    """Bytes kept of each output stream of one execution or command. The rest is counted and dropped."""
    file_bytes: Count = 256 * MIB
    """The largest file that put() and get() move."""
    exec_timeout_s: Seconds = 300
    """For one execution of code, unless the caller asks for another."""
    command_timeout_s: Seconds = 60
    """For one command, unless the caller asks for another."""


class E2BSettings(Section):
    """The hosted service E2B. The key may also be in the variable E2B_API_KEY."""

    api_key: SecretStr | None = Field(default=None, min_length=1)
    """The service's key."""
    template: str | None = Field(default=None, min_length=1)
    """The service's template; None: its code interpreter."""
    lease_s: Seconds = 600
    """Renewed while the task lives. Sandboxes of a crashed hub end after this time."""
    creates_per_second: Positive = 1
    """The service's published limit: 1 on the free plan, 5 on the next."""
    request_timeout_s: Seconds = 30
    """For one request to the service."""


PROFILES: Mapping[str, SandboxProfile] = {
    "bare": SandboxProfile(),
    "data": SandboxProfile(preload=["numpy", "pandas", "matplotlib.pyplot"]),
}


class SandboxSettings(Section):
    """Where a model's code runs, and the limits of all sandboxes."""

    backend: Backend = "local"
    """`subprocess` limits but does not isolate."""
    python: Folder | None = None
    """The Python 3.11 interpreter inside; None: the hub's own."""
    user: Annotated[str, Field(min_length=1)] | None = None
    """If the hub runs as root: the account of all sandboxes; None: each has its own uid out of `uids`."""
    uids: Annotated[str, AfterValidator(_check_uids)] = "60578-60986"
    """If the hub is root and `user` is null: each live sandbox has one of these uids. So limits that the kernel counts
    per uid (epoll, pipes, files in flight) apply per sandbox. Systems with systemd do not use the default range."""
    profiles: dict[str, SandboxProfile] = Field(default_factory=dict)
    """Kinds of sandboxes, by name. `bare` and `data` (numpy, pandas, matplotlib) exist without being named."""
    default_profile: str = "bare"
    """The profile of sandboxes that name none."""
    max_sandboxes: Count = 256
    """Live sandboxes of the whole hub."""
    max_per_task: Count = 16
    """Live sandboxes of one task."""
    memory_budget_bytes: Count | None = None
    """Memory of all sandboxes above which new ones are refused; None: half of the machine's memory."""
    e2b: E2BSettings = Field(default_factory=E2BSettings)
    """For `backend: e2b`."""

    @property
    def uid_range(self) -> tuple[int, int]:
        """First and last of `uids`."""
        first, _, last = self.uids.partition("-")
        return int(first), int(last)

    @model_validator(mode="before")
    @classmethod
    def _add_known_profiles(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        own = data.get("profiles") or {}
        return {**data, "profiles": {**PROFILES, **own}} if isinstance(own, Mapping) else data

    @field_validator("default_profile")
    @classmethod
    def _check_default(cls, name: str, info: ValidationInfo) -> str:
        profiles = info.data.get("profiles")
        if profiles is not None and name not in profiles:
            known = ", ".join(sorted(profiles))
            raise ValueError(f"there is no profile {name!r};{did_you_mean(name, list(profiles))} there are {known}")
        return name
