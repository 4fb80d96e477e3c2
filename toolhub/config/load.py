"""Load a configuration from a file or a mapping. A `ConfigError` lists all its problems.

For each section: expand the references, validate, and collect problems. A server's entry is first translated into
toolhub's keys. Only a configuration without any problem becomes a `Config`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolhub.config.agent import AgentSettings
from toolhub.config.desktop import Entry, read_entry
from toolhub.config.document import read_document
from toolhub.config.explain import Model, validate
from toolhub.config.interpolate import Expander
from toolhub.config.llm import LlmSettings
from toolhub.config.models import Config, HubSettings, Limits
from toolhub.config.problems import Key, Problem, SourceFile, first_of_each_key, kind_of, unknown_key
from toolhub.config.rules import broken_rules
from toolhub.config.sandbox import SandboxSettings
from toolhub.config.server import SECRET_FIELDS, TASK_FIELDS, Origin, ServerSpec
from toolhub.config.speculation import SpeculationSettings

_SECTIONS = ("hub", "servers", "limits", "speculation", "sandbox", "llm", "agent")
_TOP_LEVEL = (*_SECTIONS, "mcpServers")


def load_config(path: str | Path, *, environ: Mapping[str, str] | None = None) -> Config:
    """Load the configuration from a YAML or JSON file. environ: replaces the process environment.

    Raises ConfigError with the file's name and line.
    """
    document = read_document(Path(path))
    reader = _Reader(document.source, os.environ if environ is None else environ)
    return reader.config(document.data, is_json=document.is_json)


def parse_config(
    data: Mapping[str, Any], *, path: str = "<inline>", environ: Mapping[str, str] | None = None
) -> Config:
    """Load the configuration from a mapping. path: its name in errors."""
    return _Reader(SourceFile(path), os.environ if environ is None else environ).config(data)


def parse_server(
    name: str, data: Mapping[str, Any], *, path: str = "<inline>", environ: Mapping[str, str] | None = None
) -> ServerSpec:
    """Load one server. A disabled one is returned too."""
    reader = _Reader(SourceFile(path), os.environ if environ is None else environ)
    spec = reader.server(name, data, ("servers", name))
    if spec is None or reader.problems:
        raise reader.source.error(reader.problems)
    return spec


@dataclass(slots=True)
class _Reader:
    """Turns plain data into models and collects problems."""

    source: SourceFile
    environ: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)

    def config(self, data: Any, *, is_json: bool = False) -> Config:
        top = self._top_level(data, is_json)
        hub = self._section(HubSettings, top.get("hub"), ("hub",))
        limits = self._section(Limits, top.get("limits"), ("limits",))
        speculation = self._section(SpeculationSettings, top.get("speculation"), ("speculation",))
        sandbox = self._section(SandboxSettings, top.get("sandbox"), ("sandbox",))
        agent = self._section(AgentSettings, top.get("agent"), ("agent",))
        llm = self._section(LlmSettings, top["llm"], ("llm",)) if top.get("llm") is not None else None
        servers = self._servers(top)
        if self.problems or not (hub and limits and speculation and sandbox and agent):
            raise self.source.error(self.problems)
        return Config(
            hub=hub,
            servers=servers,
            limits=limits,
            speculation=speculation,
            sandbox=sandbox,
            llm=llm,
            agent=agent,
        )

    def _top_level(self, data: Any, is_json: bool) -> Mapping[str, Any]:
        if not isinstance(data, Mapping):
            raise self.source.error([Problem((), f"expected a mapping of sections, found {kind_of(data)}")])
        if is_json and "mcpServers" in data and not any(name in data for name in _SECTIONS):
            return {"mcpServers": data["mcpServers"]}  # a desktop client's file, whose other keys have no meaning here
        known = {*_TOP_LEVEL, "inputs"} if is_json else {*_TOP_LEVEL}
        for name in data:
            if name not in known:
                self.problems.append(Problem((str(name),), unknown_key(name, _TOP_LEVEL)))
        return data

    def _section(self, model: type[Model], data: Any, key: Key) -> Model | None:
        if not self._is_mapping(data, key):
            return None
        expander = Expander(self.environ)
        section, problems = validate(model, expander.expand(data or {}), self.environ)
        self._add(first_of_each_key([*expander.problems, *problems]), key)
        return section

    def _servers(self, top: Mapping[str, Any]) -> dict[str, ServerSpec]:
        specs = {}
        seen: set[object] = set()
        for section in ("servers", "mcpServers"):
            entries = top.get(section)
            for name, data in (entries or {}).items() if self._is_mapping(entries, (section,)) else ():
                key = (section, str(name))
                if name in seen:
                    self.problems.append(Problem(key, "is also in 'servers'; keep one of the two"))
                seen.add(name)
                spec = self.server(name, data, key, drop_disabled=True)
                if spec is not None:
                    specs[name] = spec
        return specs

    def server(self, name: str, data: Any, key: Key, *, drop_disabled: bool = False) -> ServerSpec | None:
        """Return the server; None if it is disabled and dropped, or has problems."""
        if not self._is_mapping(data, key):
            return None
        entry = read_entry(data or {}, is_desktop=key[0] == "mcpServers")
        if drop_disabled and self._is_disabled(entry):
            return None
        spec, problems = self._validate_server(name, entry)
        in_file = (Problem(entry.key_in_file(problem.key), problem.message) for problem in problems)
        self._add([*entry.problems, *in_file], key)
        return spec

    def _is_disabled(self, entry: Entry) -> bool:
        """Decided first, because the variables of a disabled server may be unset."""
        disabled = Expander(self.environ).expand(entry.data.get("disabled"))
        return disabled is True or str(disabled).lower() in ("true", "1", "yes", "on")

    def _validate_server(self, name: str, entry: Entry) -> tuple[ServerSpec | None, list[Problem]]:
        expander = Expander(self.environ, TASK_FIELDS)
        data = expander.expand(entry.data)
        inserted = frozenset(text for key, text in expander.inserted if key[0] in SECRET_FIELDS)
        spec, problems = validate(ServerSpec, {**data, "name": name}, Origin(inserted, expander.templates))
        if spec is None:
            # pydantic checks rules across fields only if every field is valid. Report both at once.
            found = {problem.key for problem in problems}
            rules = broken_rules(data, has_task_variables=bool(expander.templates))
            problems += [problem for problem in rules if problem.key not in found]
        return spec, first_of_each_key([*expander.problems, *problems])

    def _is_mapping(self, data: Any, key: Key) -> bool:
        """Whether the data is a mapping. None counts as an empty mapping."""
        if data is None or isinstance(data, Mapping):
            return True
        self.problems.append(Problem(key, f"expected a mapping, found {kind_of(data)}"))
        return False

    def _add(self, problems: list[Problem], key: Key) -> None:
        # The keys of a section's problems are relative to the section.
        self.problems += [Problem((*key, *problem.key), problem.message) for problem in problems]
