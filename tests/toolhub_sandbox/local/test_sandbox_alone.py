"""Sandboxes without a hub: `async with Sandboxes() as sandboxes`."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest
import toolhub_sandbox
from toolhub_sandbox import Sandboxes, SandboxLimit, SandboxLost

from tests.toolhub_sandbox.local.sandbox_stage import patience, settings


def test_the_example_of_the_package_runs_as_printed() -> None:
    example = re.search(
        r"^    import asyncio\n.*?asyncio\.run\(main\(\)\)$", toolhub_sandbox.__doc__ or "", re.M | re.S
    )
    assert example is not None
    program = textwrap.dedent(example[0])
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["42", "None", "hi", "3", "b'from", "outside'"]


def test_every_public_name_can_be_imported() -> None:
    for name in toolhub_sandbox.__all__:
        assert getattr(toolhub_sandbox, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'importlib_'"):
        toolhub_sandbox.importlib_  # noqa: B018


@pytest.mark.anyio
async def test_a_program_without_tasks_makes_sandboxes_within_the_limit_and_they_end_with_it() -> None:
    with patience():
        async with Sandboxes(settings(max_per_task=1)) as sandboxes:
            sandbox = await sandboxes.create()
            assert (await sandbox.exec_code("6 * 7")).result == "42"
            assert sandboxes.statistics().live == 1
            with pytest.raises(SandboxLimit, match="'this program' has 1 sandboxes"):
                await sandboxes.create()
        with pytest.raises(SandboxLost):
            await sandbox.exec_code("1")


@pytest.mark.anyio
async def test_sandboxes_that_were_not_entered_say_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="open Sandboxes with `async with`"):
        await Sandboxes(settings()).create()
