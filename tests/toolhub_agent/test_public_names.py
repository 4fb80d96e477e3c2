"""What `toolhub_agent` offers, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import toolhub_agent

pytestmark = pytest.mark.quick


def test_every_public_name_is_there():
    assert [name for name in toolhub_agent.__all__ if getattr(toolhub_agent, name).__name__ != name] == []


def test_completion_offers_the_public_names_only():
    assert [name for name in dir(toolhub_agent) if not name.startswith("_")] == sorted(toolhub_agent.__all__)


@pytest.mark.parametrize("name", toolhub_agent.__all__)
def test_every_public_name_says_what_it_is(name: str):
    assert len((getattr(toolhub_agent, name).__doc__ or "").split()) >= 4


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = toolhub_agent.Nope


def test_importing_the_package_imports_nothing_of_toolhub_nor_the_openai_sdk():
    code = "import sys, toolhub_agent; print([name for name in ('toolhub', 'openai', 'anyio') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
