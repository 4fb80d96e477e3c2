"""The proxy uses the connections of the endpoint pool, as the loop and the hints do."""

from __future__ import annotations

import anyio
import pytest
from llm_stand_in.answers import stalled

from tests.toolhub_agent.proxy.llm_proxy_stage import chat, open_stage

pytestmark = pytest.mark.anyio
CHAT = "/llm/v1/chat/completions"


async def test_requests_one_after_the_other_share_a_connection(server, tmp_path):
    with anyio.fail_after(30):
        # A fixed number of slots, so that no request for the engine's metrics runs beside them.
        async with open_stage(server, folder=tmp_path, max_in_flight=4) as stage, stage.http() as http:
            for stream in (False, True, False):
                assert (await http.post(CHAT, json=chat(stream=stream))).status_code == 200
    assert len(server.connections) == 1


async def test_a_connection_whose_answer_was_not_read_to_the_end_is_not_used_again(server, tmp_path):
    server.script(stalled("one ", "two ", after=1))
    with anyio.fail_after(30):
        async with open_stage(server, folder=tmp_path, max_in_flight=4) as stage, stage.http() as http:
            async with http.stream("POST", CHAT, json=chat(stream=True)) as response:
                await anext(response.aiter_bytes())
            await server.wait_until(lambda s: s.running == 0)
            assert (await http.post(CHAT, json=chat())).status_code == 200
    assert len(server.connections) == 2


@pytest.mark.parametrize(("bypass", "status"), [("", 404), ("127.0.0.1", 200)])
async def test_the_environment_s_proxy_is_used_as_for_all_other_requests(server, tmp_path, monkeypatch, bypass, status):
    for name in ("HTTP_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"127.0.0.1:{server.port}")
    monkeypatch.setenv("no_proxy", bypass)
    # An HTTP proxy is asked for whole addresses, which the stand-in does not have.
    with anyio.fail_after(30):
        async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
            assert (await http.post(CHAT, json=chat())).status_code == status
