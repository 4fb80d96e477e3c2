"""A model behind an API that has too many requests: the tool's result says so beside its sentence."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult
from starlette.responses import PlainTextResponse
from toolhub_servers.models import reasoning_os

from tests.toolhub_servers.models.media_standins import KEY, Service
from toolhub.overload import OverloadSignal, overload_in

pytestmark = pytest.mark.anyio


async def asked(service: Service) -> CallToolResult:
    url = f"{service.url}/v1/chat/completions"
    endpoint: dict[str, Any] = {"base_url": url, "model": "some-thinker", "api_key": KEY}
    async with Client(reasoning_os.create_server(**endpoint)) as client:
        return await client.call_tool("reasoning", {"question": "why?"})


@pytest.mark.parametrize(
    ("status", "expected"),
    [(429, OverloadSignal(60)), (503, OverloadSignal(60)), (400, None)],
)
async def test_a_model_that_refuses_for_its_load_is_told(
    service: Service, status: int, expected: OverloadSignal | None
) -> None:
    service.stage(*[PlainTextResponse("no", status, headers={"retry-after": "3600"})] * 20)
    result = await asked(service)
    assert overload_in(result.model_dump(by_alias=True)) == expected
    assert not result.is_error


async def test_an_answer_is_no_pressure(service: Service) -> None:
    assert overload_in((await asked(service)).model_dump(by_alias=True)) is None
