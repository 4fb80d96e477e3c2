"""Model server profiles: the commands that start model servers well suited to agents.

    for command in load_profile("vllm", ["model=Qwen/Qwen3-8B", "tensor-parallel-size=2"]).commands:
        print(command.shell())

A profile is a YAML file beside this one, or one of your own. It lists commands with the engines' own flags. In its
texts `{model}` is the model, `{NAME.node}` the host of the command NAME, and `{NAME.FLAG}` the value of one of its
flags. `{listen}` is the address to listen on: the host itself if it is a loopback address, else all addresses, and
`{draft}` is the draft model of a recipe for speculative decoding (`toolhub_agent.decoding`).
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

import toolhub_agent
from toolhub.config.document import read_document
from toolhub.config.explain import validate
from toolhub.config.problems import Problem, did_you_mean, first_of_each_key, kind_of
from toolhub.config.section import Section, Text
from toolhub.errors import ConfigError
from toolhub_agent.decoding import EngineRecipe, engine_of, find_recipe
from toolhub_runtime import install_command

SCHEDULER = "toolhub_agent.vllm_plugin.PinScheduler"
_HERE = Path(__file__).parent
_PLACEHOLDER = re.compile(r"\{([\w-]+(?:\.[\w-]+)?)\}")


class CommandTemplate(Section):
    """One command of a profile. flags: true for a flag without a value; a list for several values."""

    node: Text = "127.0.0.1"
    """The host to start it on."""
    run: list[Text] = Field(min_length=1)
    flags: dict[str, Any] = {}
    env: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], Text] = {}


class ProfileFile(Section):
    """The content of a profile's file."""

    description: str
    checked: str
    """Against which versions the flags were checked, and what could not be."""
    model: Text
    draft: Text | None = None
    """The draft model, where a flag names it as `{draft}`."""
    url: str
    """Where requests go."""
    commands: dict[str, CommandTemplate] = Field(min_length=1)


@dataclass(frozen=True)
class LaunchCommand:
    """One command to type on one machine. notes: what to know before."""

    name: str
    node: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def has_pins(self) -> bool:
        """Whether it starts vLLM with toolhub's scheduler."""
        return SCHEDULER in self.argv

    def shell(self) -> str:
        """The command on one line, variables in front."""
        return " ".join([*self._variables(), *map(shlex.quote, self.argv)])

    def pretty(self) -> str:
        """The command with a flag and its values per line."""
        lines: list[list[str]] = [[name] for name in self._variables()] + [[]]
        for word in self.argv:
            if word.startswith("--"):
                lines.append([])
            lines[-1].append(shlex.quote(word))
        return " \\\n  ".join(" ".join(line) for line in lines if line)

    def _variables(self) -> list[str]:
        return [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]


@dataclass(frozen=True)
class AppliedRecipe:
    """A recipe for speculative decoding whose flags the commands have. for_engine: its part for their engine."""

    name: str
    description: str
    use_when: str
    for_engine: EngineRecipe


@dataclass(frozen=True)
class Profile:
    """The commands in the order in which they are started. url: where requests go."""

    description: str
    checked: str
    model: str
    url: str
    commands: tuple[LaunchCommand, ...]
    decoding: AppliedRecipe | None = None


def profile_names() -> list[str]:
    """The profiles that come with toolhub."""
    return sorted(path.stem for path in _HERE.glob("*.yaml"))


def load_profile(name: str, overrides: Iterable[str] = (), decode: str | None = None) -> Profile:
    """Read a profile. name: of one that comes with toolhub, or the path of a YAML file.

    decode: the name of a recipe for speculative decoding, whose flags every engine gets.

    overrides: `KEY=VALUE` with YAML values. `model=...` sets the model, `draft=...` a recipe's draft model, `node=...`
    the host of all commands. `FLAG=...` sets a flag of every command that has it. If none has it, it is set for all
    commands but the router, which is the last of several. `NAME.FLAG=...` sets a flag of one command, `NAME.node=...`
    its host, `NAME.env.VARIABLE=...` a variable. An empty value removes a flag. Raises ConfigError, with file and line
    where it can.
    """
    document = read_document(_path_of(name))
    if not isinstance(document.data, Mapping):
        raise document.source.error([Problem((), f"expected a mapping, found {kind_of(document.data)}")])
    data = copy.deepcopy(dict(document.data))
    decoding = _add_recipe(data, name, decode) if decode is not None else None
    for override in overrides:
        _apply(data, override)
    file, problems = validate(ProfileFile, data)
    if file is None:
        raise document.source.error(first_of_each_key(problems))
    for key, model in (("model", file.model), ("draft", file.draft or "")):
        if model.startswith("-"):
            raise ConfigError("must be a name or a path; an engine reads a leading dash as a flag", key=key)
    _check_addresses(file)
    _check_draft(file)
    commands = tuple(_rendered(file, name, template) for name, template in file.commands.items())
    return Profile(file.description, file.checked, file.model, _filled(file, "", file.url), commands, decoding)


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _path_of(name: str) -> Path:
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in (known := profile_names()):
        raise ConfigError(f"no profile {name!r};{did_you_mean(name, known)} there are: {', '.join(known)}")
    return _HERE / f"{name}.yaml"


def _add_recipe(data: dict[str, Any], name: str, decode: str) -> AppliedRecipe:
    """Add a recipe's flags to all engines of a profile. Raises ConfigError if it has none for them."""
    recipe = find_recipe(decode)
    found: EngineRecipe | None = None
    for command in (data.get("commands") or {}).values():
        engine = engine_of(command.get("run") or ())
        if engine is not None and engine in recipe.engines:
            found = recipe.engines[engine]
            command["flags"] = {**command.get("flags", {}), **copy.deepcopy(found.flags)}
    if found is None:
        raise ConfigError(f"the recipe {decode!r} is for {' and '.join(recipe.engines)}, which {name!r} does not start")
    return AppliedRecipe(decode, recipe.description, recipe.use_when, found)


def _check_draft(file: ProfileFile) -> None:
    flags = json.dumps([command.flags for command in file.commands.values()], default=str)
    if "{draft}" in flags and file.draft is None:
        raise ConfigError(
            "a draft model is needed, which was trained for the model that is served: --set draft=MODEL", key="draft"
        )


def _apply(data: dict[str, Any], override: str) -> None:
    key, found, text = override.partition("=")
    if not found or not key:
        raise ConfigError(f"expected KEY=VALUE, found {override!r}", key="--set")
    try:
        value = yaml.safe_load(text) if text else None
    except yaml.YAMLError as exc:
        raise ConfigError("the value is not valid YAML", key=f"--set {key}") from exc
    commands = data.get("commands") or {}
    name, _, rest = key.partition(".")
    if key in ("model", "draft"):
        data[key] = value
    elif key == "node":
        for command in commands.values():
            command["node"] = value
    elif not rest:
        having = [command for command in commands.values() if key in command.get("flags", {})]
        for command in having or list(commands.values())[:-1] or commands.values():
            command["flags"] = {**command.get("flags", {}), key: value}
    elif name not in commands:
        raise ConfigError(f"no command {name!r}; there are: {', '.join(commands)}", key=f"--set {key}")
    elif rest == "node":
        commands[name]["node"] = value
    else:
        part, key = ("env", rest.removeprefix("env.")) if rest.startswith("env.") else ("flags", rest)
        commands[name][part] = {**commands[name].get(part, {}), key: value}


def _check_addresses(file: ProfileFile) -> None:
    taken: dict[tuple[str, Any], str] = {}
    for name, template in file.commands.items():
        port = template.flags.get("port", template.flags.get("http-port"))
        if port is not None and (other := taken.setdefault((template.node, port), name)) != name:
            raise ConfigError(f"has the same address as {other}; set its port: --set {name}.port=...", key=name)


def _rendered(file: ProfileFile, name: str, template: CommandTemplate) -> LaunchCommand:
    words = [*template.run, *(word for flag, value in template.flags.items() for word in _flag_words(flag, value))]
    env = {variable: _filled(file, name, text) for variable, text in template.env.items()}
    notes: tuple[str, ...] = ()
    if SCHEDULER in words:
        path, notes = _scheduler_path()
        env = {**path, **env}
    argv = tuple(_filled(file, name, word) for word in words)
    return LaunchCommand(name, _filled(file, name, template.node), argv, env, notes)


def _flag_words(flag: str, value: Any) -> Iterator[str]:
    """The words of a flag. A list of lists repeats the flag; a mapping becomes JSON."""
    if value is None or value is False:
        return
    if isinstance(value, list) and value and all(isinstance(each, list) for each in value):
        for each in value:
            yield from _flag_words(flag, each)
        return
    yield f"--{flag}"
    if isinstance(value, dict):
        yield json.dumps(value, separators=(",", ":"))
    elif value is not True:
        yield from map(str, value) if isinstance(value, list) else (str(value),)


def _filled(file: ProfileFile, name: str, text: str) -> str:
    """The text with its placeholders replaced. Other braces stay."""

    def value_of(match: re.Match[str]) -> str:
        owner, _, key = match[1].partition(".")
        if not key:
            own = {"model": file.model} | ({} if file.draft is None else {"draft": file.draft})
            if name:
                own["listen"] = template.node if is_loopback(template.node) else "0.0.0.0"  # noqa: S104
            return own.get(owner, match[0])
        found = file.commands.get(owner)
        if found is None:
            return match[0]
        return found.node if key == "node" else str(found.flags.get(key, match[0]))

    template = file.commands.get(name, CommandTemplate(run=["-"]))
    return _PLACEHOLDER.sub(value_of, text)


def _scheduler_path() -> tuple[dict[str, str], tuple[str, ...]]:
    """How vLLM finds the scheduler. Never a whole site-packages: its packages would hide those of vLLM."""
    metrics = "for the counts of pins in /metrics also set PROMETHEUS_MULTIPROC_DIR to an empty folder"
    folder = Path(toolhub_agent.__file__).parents[1]
    if (folder / "toolhub").is_dir():
        install = install_command(program="pip install --no-deps")
        return {}, (f"vLLM's environment needs the scheduler: {install}; {metrics}",)
    return {"PYTHONPATH": str(folder)}, (metrics,)
