"""The proxy of a real `toolhub serve`, used by a real SDK."""

from __future__ import annotations

import threading
from pathlib import Path

import openai
import pytest
from llm_stand_in.answers import said
from openai.types.chat import ChatCompletionMessageParam
from served_hub import eventually, open_task, served, write_config

from tests.toolhub_agent.proxy.llm_proxy_stage import TASK, is_prefetch, xml_call

TOKEN = "a-token-for-this-test"
# Counted once the answer is out, so a client may see it a moment later.
ANSWERED = 'toolhub_llm_requests_total{path="/v1/chat/completions",status="200"} 2.0'


@pytest.fixture
def config(tmp_path, server):
    return write_config(
        tmp_path,
        servers={"tools": {"builtin": "llm_proxy_tools:create_server"}},
        llm={
            "endpoints": [server.url],
            "api_key": "sk-the-engines-own",
            "hints": {"mode": "on", "min_prefix_tokens": 1, "lead_time_s": 0},
        },
    )


def test_an_agent_that_knows_nothing_of_hints_gets_its_prompt_computed_ahead(config, server, tmp_path):
    done = tmp_path / "done"
    server.script(said(xml_call(until=str(done))))
    here = {"PYTHONPATH": str(Path(__file__).parent)}
    with (
        served(config, "--token", TOKEN, token=TOKEN, env=here) as hub,
        hub.client(timeout=60) as api,
        open_task(api) as task,
        openai.OpenAI(base_url=f"{hub.http}/llm/v1", api_key=TOKEN, http_client=_http()) as client,
    ):
        assert "LLM proxy" in hub.said and "/llm" in hub.said
        first = client.chat.completions.create(model="m", messages=TASK)
        calling = threading.Thread(target=task.call, args=("search", "tools"), kwargs={"until": str(done)})
        calling.start()
        server.block_until(lambda s: any(is_prefetch(seen) for seen in s.chats))
        done.touch()
        calling.join(20)
        answer: ChatCompletionMessageParam = {"role": "assistant", "content": first.choices[0].message.content}
        messages: list[ChatCompletionMessageParam] = [*TASK, answer, {"role": "user", "content": "found"}]
        client.chat.completions.create(model="m", messages=messages)
        metrics = eventually(lambda: text if ANSWERED in (text := api.get("/metrics").text) else "")
        said_by_hub = hub.said
    (prefetch,) = [seen for seen in server.chats if is_prefetch(seen)]
    assert prefetch.body["messages"] == [*TASK, answer]
    assert {seen.headers["authorization"] for seen in server.chats} == {"Bearer sk-the-engines-own"}
    assert 'toolhub_llm_hints_total{what="prefetches_sent"} 1.0' in metrics
    assert "You search" not in said_by_hub + metrics and "sk-the" not in said_by_hub + metrics


def _http() -> openai.DefaultHttpxClient:
    return openai.DefaultHttpxClient(trust_env=False)
