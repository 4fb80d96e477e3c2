"""Looking at a model server ends, whatever the server does."""

from __future__ import annotations

import anyio
import pytest
from llm_stand_in.answers import Answer, Fault, stalled
from llm_stand_in.model_server import ModelServer
from toolhub_agent.cli.doctor import settings_for
from toolhub_agent.doctor import CheckResult, DoctorReport, run_checks
from toolhub_agent.llm.endpoint_pool import open_endpoint_pool

from toolhub.config import LlmSettings, parse_config

pytestmark = pytest.mark.anyio


async def examined(server: ModelServer) -> DoctorReport:
    settings = LlmSettings(endpoints=[server.url])
    with anyio.fail_after(20):
        async with open_endpoint_pool(settings) as pool:
            return await run_checks(pool.transport(server.url), settings)


def of(report: DoctorReport, check: str) -> CheckResult:
    return next(finding for finding in report.findings if finding.check == check)


async def test_requests_that_are_never_answered_are_given_up(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolhub_agent.doctor.probe.REQUEST_TIMEOUT_S", 0.2)
    server.usual = lambda seen: stalled(after=0)
    report = await examined(server)
    assert report.is_reachable and of(report, "engine").status == "ok"
    for check in ("prefix cache", "hints", "native tool calls"):
        assert "no answer within" in of(report, check).detail


async def test_the_whole_is_bounded_and_says_what_was_left_out(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolhub_agent.doctor.checks.TOTAL_TIMEOUT_S", 0.5)
    server.usual = lambda seen: stalled(after=0)
    report = await examined(server)
    assert "not all checks ended" in of(report, "time").detail and of(report, "metrics").status == "ok"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (Answer(fault=Fault.MALFORMED), "not JSON"),
        (Answer(raw="data: [DONE]\n\n", content_type="text/event-stream"), "contained no answer"),
        (Answer(fault=Fault.CUT), "RemoteProtocolError"),
        (
            Answer(raw=f'data: {{"pad": "{"x" * (1 << 16)}"}}\n\n' * 80, content_type="text/event-stream"),
            "does not end",
        ),
    ],
)
async def test_a_broken_stream_is_a_finding(server: ModelServer, answer: Answer, what: str) -> None:
    server.usual = lambda seen: answer
    assert what in of(await examined(server), "prefix cache").detail


@pytest.mark.parametrize("section", [None, {"endpoints": ["http://10.0.0.1/v1"], "connect_timeout_s": 60}])
def test_a_connection_may_take_4_s_whatever_the_config_says(section: dict[str, object] | None) -> None:
    config = None if section is None else parse_config({"llm": section}, environ={})
    assert settings_for(config, "http://10.0.0.1").connect_timeout_s == 4
