"""The plugin starts where it can work and says clearly where it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import toolhub_agent
from toolhub_agent import vllm_plugin
from toolhub_agent.vllm_plugin.support import PinSettings, UnsupportedVllm, check_features, is_supported

# What vLLM's environment need not have.
FOREIGN = ("toolhub", "anyio", "httpx2", "openai", "pydantic", "json_repair", "starlette")


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu", "0.32"])
def test_the_supported_series(version: str) -> None:
    assert is_supported(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.320.0", "1.0.32", "dev", ""])
def test_other_versions_are_not_supported(version: str) -> None:
    assert not is_supported(version)


def test_without_vllm_it_says_what_is_missing() -> None:
    with pytest.raises(UnsupportedVllm, match=r"runs inside vLLM 0\.32, and there is no vLLM"):
        _ = vllm_plugin.PinScheduler


class Whole:
    def allocate(self, request: str, count: int) -> None: ...


class Renamed:
    def allocate(self, request: str, number: int) -> None: ...


def test_a_fork_without_what_is_needed_is_refused_by_name() -> None:
    check_features({Whole: {"allocate": ["request", "count"]}})
    with pytest.raises(UnsupportedVllm, match=r"no Renamed\.allocate\(request, count\), Whole\.free\(\); install vLLM"):
        check_features({Renamed: {"allocate": ["request", "count"]}, Whole: {"free": []}})


def test_the_operators_limits() -> None:
    assert PinSettings.of({}) == PinSettings(max_share=0.5, max_ttl=600)
    set_limits = {"TOOLHUB_PIN_MAX_SHARE": "0.25", "TOOLHUB_PIN_MAX_TTL_S": "30"}
    assert PinSettings.of(set_limits) == PinSettings(max_share=0.25, max_ttl=30)


@pytest.mark.parametrize("text", ["half", "-0.1", "1.5", "nan", "50%"])
def test_a_wrong_limit_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"TOOLHUB_PIN_MAX_SHARE must be a number from 0 to 1, not '{text}'"):
        PinSettings.of({"TOOLHUB_PIN_MAX_SHARE": text})


def test_it_needs_nothing_that_only_toolhub_has() -> None:
    home = Path(toolhub_agent.__file__).parents[1]
    program = f"""
import sys
sys.path.insert(0, {str(home)!r})
for name in {FOREIGN!r}:
    sys.modules[name] = None
from toolhub_agent.vllm_plugin import metrics, pins, support
"""
    subprocess.run([sys.executable, "-I", "-W", "error", "-c", program], check=True)
