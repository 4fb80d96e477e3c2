"""Parameters of every kind become entries that the hub understands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from miroflow_agents import Params

from toolhub import ConfigError
from toolhub.config import ServerSpec, parse_server
from toolhub.miroflow.params import Setting, entry_of

pytestmark = pytest.mark.quick
SETTING = Setting(timeout=1200, instances=4, cwd="/agent")


def spec(params: Any, *, server: str = "s", setting: Setting = SETTING) -> ServerSpec:
    """What the hub makes of the parameters, with an environment of its own."""
    return parse_server(server, entry_of(server, params, setting), environ={"HOME": "/hub"})


@pytest.mark.parametrize("kind", [Params, dict])
def test_stdio_parameters_may_be_any_object_or_a_dict(kind: Any) -> None:
    made = spec(kind(command="python", args=["-m", "x"], env={"KEY": "v"}))
    assert (made.transport, made.command, made.args, made.env) == ("stdio", "python", ["-m", "x"], {"KEY": "v"})


def test_unset_variables_are_left_out() -> None:
    assert spec(Params("python", env={"A": None, "B": "1"})).env == {"B": "1"}
    assert spec(Params("python", env=None)).env == {}


def test_a_server_runs_where_the_agent_runs_unless_it_says_otherwise() -> None:
    assert spec(Params("python")).cwd == "/agent"
    assert spec(Params("python", cwd=Path("/own"))).cwd == "/own"


@pytest.mark.parametrize("text", ["${HOME}", "$${HOME}", "${task.id}", "${", "$HOME"])
def test_what_looks_like_a_reference_is_taken_literally(text: str) -> None:
    made = spec(Params("python", [text], {"KEY": text})).for_task({"id": "t1"})
    assert (made.args, made.env) == ([text], {"KEY": text})


@pytest.mark.parametrize(
    ("params", "transport"),
    [
        ("http://h:1/sse", "sse"),
        ("https://h/anything", "sse"),
        ("http://h:1/mcp", "http"),
        ("http://h:1/mcp/", "http"),
        ({"url": "http://h:1/x", "type": "streamable_http"}, "http"),
        ({"url": "http://h:1/mcp", "type": "sse"}, "sse"),
    ],
)
def test_an_address_is_sse_unless_it_says_otherwise(params: Any, transport: str) -> None:
    assert spec(params).transport == transport


def test_headers_go_along() -> None:
    assert spec({"url": "http://h/mcp", "headers": {"X-Key": "1"}}).headers == {"X-Key": "1"}


def test_only_the_browser_keeps_state() -> None:
    browser = spec(Params("npx"), server="playwright")
    assert (browser.is_stateful, browser.instances) == (True, 1)
    other = spec(Params("npx"))
    assert (other.is_stateful, other.instances, other.call_timeout_s) == (False, 4, 1200)


def test_the_task_id_is_added_without_touching_the_parameters() -> None:
    params = Params("python", env={"A": "1"})
    made = spec(params, setting=Setting(timeout=1, instances=1, task_id="t7"))
    assert made.env == {"A": "1", "TASK_ID": "t7"}
    assert params.env == {"A": "1"}


@pytest.mark.parametrize("params", [5, "ftp://h", {}, {"url": 5}, object()])
def test_other_kinds_are_refused_in_the_known_words(params: Any) -> None:
    with pytest.raises(TypeError) as caught:
        spec(params)
    assert str(caught.value) == f"Unknown server params type for s: {type(params)}"


def test_parameters_that_cannot_be_used_say_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="transport"):
        spec({"url": "http://h", "type": "carrier-pigeon"})
