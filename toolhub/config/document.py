"""Read a config file into plain data, with the line of each key.

YAML is composed into nodes first, because only nodes have lines and duplicate keys. JSON is parsed as JSON, and then
composed as YAML for its lines and duplicates.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import Reader

from toolhub.config.problems import Key, Problem, SourceFile
from toolhub.errors import ConfigError

_STR = "tag:yaml.org,2002:str"
_PLAIN = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float"))
_MERGE = "tag:yaml.org,2002:merge"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_SUFFIXES = (".yaml", ".yml", ".json")
_TEXT_FIELDS = ("env", "headers", "args")
# A few lines of YAML can stand for any number of values, because aliases may contain aliases.
_MAX_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class Document:
    data: Any
    source: SourceFile
    is_json: bool


class _Loader(yaml.SafeLoader):
    """A safe loader that reads dates as text, because no config value is a date."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_document(path: Path) -> Document:
    """Return the file's data and lines. Raises ConfigError if it cannot be read or is malformed."""
    text = _read_text(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"expected a file ending in {', '.join(_SUFFIXES)}", path=str(path))
    is_json = path.suffix.lower() == ".json"
    try:
        data, source = (_read_json if is_json else _read_yaml)(text, str(path))
    except RecursionError:
        raise ConfigError("nested too deeply", path=str(path)) from None
    return Document({} if data is None else data, source, is_json)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"no such file{where}", path=str(path)) from None
    except IsADirectoryError:
        raise ConfigError("is a directory; expected a file", path=str(path)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text (byte {error.start})", path=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path=str(path)) from error


def _read_json(text: str, path: str) -> tuple[Any, SourceFile]:
    try:
        data = json.loads(text) if text.strip() else None
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg} (column {error.colno}){_advice_on_json(text, error.pos)}"
        raise ConfigError(message, path=path, line=error.lineno) from None
    except ValueError:
        raise ConfigError("not valid JSON: a number has too many digits", path=path) from None
    try:
        # YAML allows neither tabs nor some characters of JSON. The replacements keep every position.
        root = _Loader(Reader.NON_PRINTABLE.sub("?", text.replace("\t", " "))).get_single_node()
    except yaml.YAMLError:
        return data, SourceFile(path)  # JSON that YAML cannot read: errors go without lines
    return data, _Positions(path).of(root)


def _advice_on_json(text: str, position: int) -> str:
    if text.startswith(("//", "/*"), position):
        return "; JSON has no comments: remove them, or write the config in YAML"
    # A parser may report a comma at the end at the comma itself or at the bracket after it.
    if re.match(r"\s*,?\s*[}\]]", text[position:]) and text[: position + 1].rstrip("}] \t\r\n").endswith(","):
        return "; remove the comma before the closing bracket"
    return ""


def _read_yaml(text: str, path: str) -> tuple[Any, SourceFile]:
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        source = _Positions(path).of(root)
        return (None if root is None else loader.construct_document(root)), source
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"not valid YAML: {error.reason}", path=path, line=line) from None
    except yaml.MarkedYAMLError as error:
        raise _yaml_error(error, text, path) from None
    except ValueError:
        raise ConfigError("not valid YAML: a value does not fit its tag", path=path) from None


def _yaml_error(error: yaml.MarkedYAMLError, text: str, path: str) -> ConfigError:
    said = ", ".join(part for part in (error.context, error.problem) if part)
    # An unquoted password can look like an alias or a tag, which PyYAML then quotes.
    said = re.sub(r"\s*'(?!<)[^'\s]{2,}'", "", said)
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return ConfigError(f"not valid YAML: {said}", path=path)
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    message = f"not valid YAML: {said} (column {mark.column + 1}){_advice_on_yaml(line, said)}"
    return ConfigError(message, path=path, line=mark.line + 1)


def _advice_on_yaml(line: str, said: str) -> str:
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "; the line is indented with a tab, and YAML takes only spaces"
    if "${" in line:
        return '; inside { } or [ ] a reference needs quotes: "${NAME}"'
    return "; is the line indented as far as the lines that it belongs to?" if "block mapping" in said else ""


@dataclass(slots=True)
class _Positions:
    """Walks the nodes once: collects lines, refuses duplicate keys, and keeps texts as they are written."""

    path: str
    lines: dict[Key, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    visited: int = 0

    def of(self, root: yaml.Node | None) -> SourceFile:
        if root is not None:
            self._visit(root, (), root.start_mark.line + 1, ())
        source = SourceFile(self.path, self.lines)
        if self.problems:
            raise source.error(self.problems)
        return source

    def _visit(self, node: yaml.Node, key: Key, line: int, above: tuple[yaml.Node, ...]) -> None:
        self.lines[key] = line
        self._count(line)
        if node in above:
            raise ConfigError("an alias refers to what contains it", path=self.path, line=line)
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, key, (*above, node))
        elif isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self._visit(item, (*key, i), item.start_mark.line + 1, (*above, node))
        elif _is_text(key) and node.tag in _PLAIN:
            node.tag = _STR  # `PORT: 0080` and `DEBUG: yes` reach the server as they are written

    def _visit_mapping(self, node: yaml.MappingNode, key: Key, above: tuple[yaml.Node, ...]) -> None:
        seen: set[str] = set()
        # Merged mappings first: the mapping's own keys override theirs.
        for name, value in sorted(node.value, key=lambda pair: pair[0].tag != _MERGE):
            line = name.start_mark.line + 1
            if name.tag == _MERGE:
                self._visit_merged(value, key, above)
                continue
            if not isinstance(name, yaml.ScalarNode):
                raise ConfigError("a key must be a text", path=self.path, line=line)
            name.tag = _STR  # the key `on` is not true, and `1` not a number
            self._visit(value, (*key, name.value), line, above)
            if name.value in seen:
                self.problems.append(Problem((*key, name.value), f"duplicate key {name.value!r}"))
            seen.add(name.value)

    def _visit_merged(self, node: yaml.Node, key: Key, above: tuple[yaml.Node, ...]) -> None:
        for merged in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(merged, yaml.MappingNode) and merged not in above:
                self._count(merged.start_mark.line + 1)
                self._visit_mapping(merged, key, (*above, merged))

    def _count(self, line: int) -> None:
        self.visited += 1
        if self.visited > _MAX_VALUES:
            message = f"has more than {_MAX_VALUES} values, aliases written out; use fewer aliases"
            raise ConfigError(message, path=self.path, line=line)


def _is_text(key: Key) -> bool:
    return len(key) > 3 and key[0] in ("servers", "mcpServers") and key[2] in _TEXT_FIELDS
