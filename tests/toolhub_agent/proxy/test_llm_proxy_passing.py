"""What passes through the proxy: bytes, statuses, headers, and nothing else."""

from __future__ import annotations

import logging

import anyio
import httpx2
import openai
import pytest
from llm_stand_in.answers import Answer, called, failed, said, stalled

from tests.toolhub_agent.proxy.llm_proxy_stage import HELLO, chat, open_stage

pytestmark = pytest.mark.anyio
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
ANSWERS = [
    said("Hel", "lo", " wörld", reasoning="hm"),
    called(("search-google_search", {"q": "x"}), text="thinking"),
    said("a", events=(": ping\n\n", "event: x\r\ndata: {}\r\n\r\n")),
]


async def direct(server, body, path="/chat/completions"):
    async with httpx2.AsyncClient(trust_env=False) as client:
        return await client.post(server.url + path, json=body)


@pytest.mark.parametrize("answer", ANSWERS, ids=["reasoning", "calls", "events"])
@pytest.mark.parametrize("more", [{}, {"stream": True}, STREAMED, {"stream": True, "stream_options": {}}], ids=str)
async def test_an_answer_has_the_bytes_that_the_engine_itself_would_send(server, tmp_path, answer, more):
    server.tell_cached = False  # the second of two equal requests finds more in the cache
    async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
        server.script(answer, answer)
        through = await http.post("/llm/v1/chat/completions", json=chat(**more))
        itself = await direct(server, chat(**more))
    assert through.status_code == 200 and through.content == itself.content
    assert through.headers["content-type"] == itself.headers["content-type"]


async def test_usage_is_asked_for_and_counted_although_the_client_does_not_see_it(server, tmp_path):
    async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
        answer = await http.post("/llm/v1/chat/completions", json=chat("so many words " * 40, stream=True))
        await http.post("/llm/v1/chat/completions", json=chat("so many words " * 40, stream=True))
        assert b"usage" not in answer.content and answer.content.endswith(b"data: [DONE]\n\n")
        assert server.chats[0].body["stream_options"] == {"include_usage": True}
        prompt = sum(counted.prompt for counted in server.counted)
        assert stage.metric("toolhub_llm_tokens_total", kind="prompt") == prompt > 0
        assert stage.metric("toolhub_llm_tokens_total", kind="cached") == server.counted[1].cached > 0
        assert stage.metric("toolhub_llm_ttft_seconds_count") == 2
        assert stage.metric("toolhub_llm_requests_total", path="/v1/chat/completions", status="200") == 2


async def test_an_engine_that_does_not_know_the_proxy_s_fields_gets_the_request_without_them(server, tmp_path):
    server.usual = lambda seen: failed(400, "extra field") if "stream_options" in seen.body else said("fine")
    async with open_stage(server, folder=tmp_path) as stage, stage.client() as client:
        for _ in range(2):
            stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "fine"
    assert ["stream_options" in seen.body for seen in server.chats] == [True, False, False]


async def test_pieces_come_through_as_the_engine_writes_them(server, tmp_path):
    server.script(stalled("one ", "two "))
    async with open_stage(server, folder=tmp_path) as stage, stage.client() as client:
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        with anyio.fail_after(30):
            first = await stream.__anext__()
            assert first.choices[0].delta.content == "one "  # the second is not written yet
            server.release()
            rest = [chunk.choices[0].delta.content async for chunk in stream]
    assert rest[0] == "two "


async def test_completions_and_models_pass_too(server, tmp_path):
    async with open_stage(server, folder=tmp_path) as stage, stage.client() as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        server.script(said("yes"))
        whole = await client.completions.create(model="m", prompt="Is it?")
        stream = await client.completions.create(model="m", prompt="Is it?", stream=True)
        assert whole.choices[0].text == "yes"
        assert "".join([chunk.choices[0].text or "" async for chunk in stream]) == "ok"


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_s_error_comes_with_its_status_and_body(server, tmp_path, status, stream):
    server.usual = lambda seen: failed(status, "it is so", retry_after="7")
    async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
        answer = await http.post("/llm/v1/chat/completions", json=chat(stream=stream))
    assert answer.status_code == status and answer.json()["error"]["message"] == "it is so"
    assert answer.headers["retry-after"] == "7"


async def test_credentials_stay_on_their_side(server, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    server.usual = lambda seen: failed(401, "wrong key sk-the-engines-own", retry_after="1")
    headers = {"x-own": "goes on", "cookie": "a=b", "x-api-key": "mine", "connection": "x-hop", "x-hop": "ends here"}
    async with (
        open_stage(server, folder=tmp_path, token="hub-token", api_key="sk-the-engines-own") as stage,
        stage.http() as http,
    ):
        answer = await http.post("/llm/v1/chat/completions", json=chat("a private matter"), headers=headers)
        assert "sk-the-engines-own" not in answer.text + str(answer.headers)
        metrics = (await http.get("/metrics")).text
    seen = server.chats[0].headers
    assert seen["authorization"] == "Bearer sk-the-engines-own" and seen["x-own"] == "goes on"
    assert not {"cookie", "x-api-key", "x-hop"} & seen.keys() and "hub-token" not in str(seen)
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("toolhub")]
    assert not any("private matter" in line or "sk-the" in line for line in [*ours, metrics])


@pytest.mark.parametrize("configured", ["", "engine.example"])
async def test_an_engine_is_named_once_as_its_address_says_or_the_config(server, tmp_path, configured):
    headers = {"Host": configured} if configured else {}
    async with open_stage(server, folder=tmp_path, headers=headers) as stage, stage.http() as http:
        answer = await http.post("/llm/v1/chat/completions?a=b%20c", json=chat(), headers={"host": "localhost"})
    assert answer.status_code == 200
    assert server.chats[0].headers["host"] == (configured or f"127.0.0.1:{server.port}")


async def test_without_a_configured_key_the_hub_s_token_is_not_sent_either(server, tmp_path):
    async with open_stage(server, folder=tmp_path, token="hub-token") as stage, stage.client() as client:
        await client.chat.completions.create(model="m", messages=HELLO)
    assert "authorization" not in server.chats[0].headers


async def test_a_wrong_token_is_refused_and_reaches_no_engine(server, tmp_path):
    async with open_stage(server, folder=tmp_path, token="hub-token") as stage, stage.client(api_key="no") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=HELLO)
    assert server.seen == []


@pytest.mark.parametrize(
    "path",
    ["/llm/v1/../../metrics", "/llm/v1/%2e%2e/%2e%2e/metrics", "/llm/v1//chat/completions", "/llm/v1/embeddings"]
    + [
        "/llm/v1/models/../../metrics",
        "/llm/v1/models@127.0.0.1/x",
        "/llm/metrics",
        "/llm",
        "/llm/v1/chat/completions/",
    ]
    + ["/llm/http://127.0.0.1:1/", "/llm/v1/models%00"],
)
async def test_no_other_path_reaches_an_engine(server, tmp_path, path):
    async with open_stage(server, folder=tmp_path) as stage:
        port = int(stage.root.rpartition(":")[2])
        async with await anyio.connect_tcp("127.0.0.1", port) as raw:  # a client would tidy the path up
            await raw.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            head = await raw.receive()
    status = int(head.split()[1])
    assert status in (307, 404) and server.seen == []


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[1]", {}, 400),
        (b"", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"{}", {"content-encoding": "gzip"}, 415),
        (b"[" * 100_000, {}, 400),
    ],
)
async def test_what_is_no_request_is_a_clear_error(server, tmp_path, content, headers, status):
    async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
        answer = await http.post("/llm/v1/chat/completions", content=content, headers=headers)
        assert answer.status_code == status and answer.json()["error"]["message"]
        wrong = await http.get("/llm/v1/chat/completions")
        assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert server.seen == []


async def test_strange_but_valid_bodies_go_on_byte_for_byte(server, tmp_path):
    content = b' {"messages": [{"role": "user", "content": "\\ud800 cut", "x": NaN}], "model" : "m", "n": 1e0 } '
    async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
        answer = await http.post("/llm/v1/chat/completions", content=content)
    assert answer.status_code == 200 and server.chats[0].headers["content-length"] == str(len(content))


async def test_a_huge_body_is_refused_before_it_is_read(server, tmp_path, monkeypatch):
    monkeypatch.setattr("toolhub_agent.proxy.app.MAX_BODY_BYTES", 1000)

    async def pieces():
        for _ in range(20):
            yield b" " * 100

    async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
        for content in (b" " * 2000, pieces()):
            answer = await http.post("/llm/v1/chat/completions", content=content)
            assert answer.status_code == 413 and "1000 bytes" in answer.json()["error"]["message"]
    assert server.seen == []


async def test_a_router_s_token_comes_back_with_the_conversation_s_next_request(server, tmp_path):
    server.usual = lambda seen: Answer(headers={"x-session-token": "route-7"})
    async with open_stage(server, folder=tmp_path) as stage, stage.http() as http:
        for _ in range(2):
            await http.post("/llm/v1/chat/completions", json=chat(), headers={"X-Session-ID": "s"})
    assert [seen.headers.get("x-session-token") for seen in server.chats] == [None, "route-7"]
