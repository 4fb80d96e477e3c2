"""The page of errors: every class has an entry, and the messages that it explains are those of the code."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolhub.cli.errors import entries
from toolhub.errors import CallTimeout, HubUnreachable, ToolhubError
from toolhub.wire import STATUS, error_to_wire

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "errors.md").read_text()
ENTRIES = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
MESSAGES = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)
PACKAGES = tuple(
    ROOT / folder
    for folder in ("toolhub", "toolhub_runtime", "sandbox/toolhub_sandbox", "servers/toolhub_servers", "agent_loop")
)
# Where errors are that reach users. Others are caught by the package that raises them.
ERROR_MODULES = (
    "toolhub.errors",
    "toolhub.miroflow.tasks",
    "toolhub_agent.errors",
    "toolhub_agent.tasklog.reader",
    "toolhub_sandbox.e2b.sdk_adapter",
    "toolhub_sandbox.errors",
    "toolhub_servers.browser.errors",
    "toolhub_servers.scrape.model",
    "toolhub_servers.search.model",
    "toolhub_servers.web.errors",
)


def error_classes(root: type[ToolhubError] = ToolhubError) -> Iterator[str]:
    if root.__module__ in ERROR_MODULES:
        yield root.__name__
    for kind in root.__subclasses__():
        yield from error_classes(kind)


def texts_of(node: ast.AST) -> str:
    """A string of the code; what it inserts is `…`."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join("…" if isinstance(part, ast.FormattedValue) else texts_of(part) for part in node.values)
    return ""


def test_every_error_has_an_entry_in_alphabetical_order():
    for module in ERROR_MODULES:
        importlib.import_module(module)
    assert set(error_classes()) - set(ENTRIES) == set()
    assert sorted(ENTRIES, key=str.lower) == ENTRIES


def test_the_command_that_an_error_names_prints_its_entry():
    for error in (CallTimeout("late", timeout=1), HubUnreachable("no hub")):
        *command, name = error.help_command.split()
        assert command == ["toolhub", "errors"]
        assert error_to_wire(error)["help"] == error.help_command
        assert name in entries()
    assert list(entries()) == ENTRIES


def test_every_entry_is_an_error_of_the_code():
    defined = {
        node.name
        for package in PACKAGES
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert set(ENTRIES) - defined == set()


def test_every_message_on_the_page_is_one_of_the_code():
    code = " ".join(
        texts_of(node)
        for package in PACKAGES
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant | ast.JoinedStr)
    )
    assert len(MESSAGES) > 30
    unknown = [
        (message, part)
        for message in MESSAGES
        for part in message.split("…")
        if len(part.strip(" ,;:()'")) > 3 and part.strip(" ,;:()'") not in code
    ]
    assert unknown == []


def test_the_statuses_on_the_page_are_those_of_http():
    shown = dict(re.findall(r"^\| \[(\w+)\]\(#\w+\) \| [^|]* \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert {kind.__name__: str(status) for kind, status in STATUS.items() if kind.__name__ in shown} == {
        name: status.split()[0] for name, status in shown.items()
    }
