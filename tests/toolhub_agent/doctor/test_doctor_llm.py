"""`toolhub doctor --llm`, as a user runs it, with a model server that is told what to be like."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from llm_stand_in.answers import Answer, Json, called, failed, said
from llm_stand_in.model_server import ModelServer, Seen
from llm_stand_in.prefix_cache import render
from toolhub_command import Shell


def examined(shell: Shell, server: ModelServer, *arguments: str) -> dict[str, Any]:
    """Findings by the name of the check."""
    told = shell.json("doctor", "--llm", server.root, *arguments)
    assert told["ok"] and told["url"] == server.url
    return {finding["check"]: finding for finding in told["findings"]}


def uses_tools(seen: Seen) -> Answer:
    return called(("look_up", {"word": "heron"})) if seen.body.get("tools") else said("ok")


def test_a_server_that_has_everything_is_told_to_have_it(shell: Shell, server: ModelServer) -> None:
    server.usual = uses_tools
    found = examined(shell, server)
    assert {finding["status"] for name, finding in found.items() if name != "hint: retention"} == {"ok", "note"}
    assert found["engine"]["detail"] == "vLLM 0.32.0" and found["model"]["detail"] == "m"
    assert found["metrics"]["detail"] == "0 running, 0 waiting, 0% of its cache in use"
    assert found["native tool calls"]["status"] == "ok"
    for check in ("prefix cache", "cached tokens", "TTFT", "template, text", "template, native calls"):
        assert found[check]["status"] == "ok", found[check]
    assert found["hint: prefetch"]["status"] == "ok"
    assert "not seen in /metrics" in found["hint: retention"]["detail"]


def test_the_prefill_ahead_that_it_tries_is_one_of_the_hints(shell: Shell, server: ModelServer) -> None:
    examined(shell, server)
    (warm,) = [seen for seen in server.chats if seen.headers.get("x-request-id", "").startswith("toolhub-prefetch-")]
    assert warm.body["max_tokens"] == 1 and warm.body["add_generation_prompt"] is False
    sessions = {seen.headers["x-session-id"] for seen in server.chats}
    assert len(sessions) == 1


def test_a_cache_that_forgets_is_weaker_and_says_what_to_start(shell: Shell, server: ModelServer) -> None:
    server.cache.blocks = 0
    found = examined(shell, server)
    assert found["prefix cache"]["status"] == "weaker" and "0 of" in found["prefix cache"]["detail"]
    assert "--enable-prefix-caching" in found["prefix cache"]["advice"]
    assert found["hint: prefetch"]["status"] == "weaker"


def test_cached_tokens_that_are_not_told_are_missed(shell: Shell, server: ModelServer) -> None:
    server.tell_cached = False
    found = examined(shell, server)
    assert found["cached tokens"]["status"] == "weaker"
    assert "--enable-prompt-tokens-details" in found["cached tokens"]["advice"]
    assert "does not report it" in found["prefix cache"]["detail"]


def test_a_cache_that_is_not_told_of_shows_in_the_time(shell: Shell, server: ModelServer) -> None:
    server.tell_cached, server.prefill_s_per_token = False, 0.0002
    found = examined(shell, server)
    assert found["prefix cache"]["status"] == "note" and "much faster" in found["prefix cache"]["detail"]


def without_last_thoughts(body: Json) -> str:
    """A template that shows the thinking of an answer only as long as nothing is behind it."""
    *past, last = body["messages"]
    kept = [message | {"content": (message["content"] or "").rpartition("</think>")[2]} for message in past]
    return str(render(body | {"messages": [*kept, last]}))


def test_a_template_that_drops_past_thoughts_is_noted(
    shell: Shell, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_stand_in.model_server.render", without_last_thoughts)
    found = examined(shell, server)
    assert found["template, text"]["status"] == "ok"
    assert (found["template, thinking"]["status"], found["template, thinking"]["detail"]) == (
        *("note", "rewrites history"),
    )


def last_message_first(body: Json) -> str:
    return str(render(body | {"messages": body["messages"][::-1]}))


def test_a_template_that_only_rewrites_is_weaker(
    shell: Shell, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_stand_in.model_server.render", last_message_first)
    found = examined(shell, server)
    assert found["template, text"]["status"] == found["template, native calls"]["status"] == "weaker"
    del server.pages["/version"]  # an unknown server, which has no tokenizer to ask
    assert examined(shell, server)["template"]["status"] == "weaker"


def test_metrics_that_are_missing_are_weaker(shell: Shell, server: ModelServer) -> None:
    server.load.dialect = ""
    found = examined(shell, server)
    assert found["metrics"]["status"] == "weaker" and "llm: max_in_flight" not in found["metrics"]["advice"]


def test_tool_calls_that_are_refused_or_unread_are_weaker(shell: Shell, server: ModelServer) -> None:
    server.usual = lambda seen: failed(400, "auto needs a parser") if seen.body.get("tools") else said("ok")
    found = examined(shell, server)
    assert found["native tool calls"]["status"] == "weaker"
    assert "auto needs a parser" in found["native tool calls"]["detail"]
    assert "--tool-call-parser" in found["native tool calls"]["advice"]
    server.usual = lambda seen: said('<tool_call>{"name": "look_up", "arguments": {}}</tool_call>')
    assert "came back as text" in examined(shell, server)["native tool calls"]["detail"]


def test_sglang_that_protects_sessions_is_recognised(shell: Shell, server: ModelServer) -> None:
    del server.pages["/version"]
    server.load.dialect = "sglang"
    arguments = {"radix_eviction_policy": "lru", "enable_session_radix_cache": True, "version": "0.9"}
    server.pages["/server_info"] = arguments
    found = examined(shell, server)
    assert found["engine"]["detail"] == "SGLang 0.9" and found["hint: retention"]["status"] == "ok"
    arguments["enable_session_radix_cache"] = False
    assert "--enable-session-radix-cache" in examined(shell, server)["hint: retention"]["advice"]


def test_a_server_that_nothing_is_known_of_is_measured(shell: Shell, server: ModelServer) -> None:
    del server.pages["/version"]
    found = examined(shell, server)
    assert found["engine"]["status"] == "note"
    assert found["template"]["status"] == "ok" and "as its cache shows" in found["template"]["detail"]


def test_pins_that_work_but_are_not_used_are_told(shell: Shell, server: ModelServer) -> None:
    server.load.dialect = ""
    server.pages["/metrics"] = {"toolhub_pins": 0}
    assert "not used" in examined(shell, server)["hint: retention"]["detail"]
    config = {"llm": {"endpoints": [server.url], "hints": {"use_pin_scheduler": True}}}
    (shell.folder / "hub.yaml").write_text(yaml.safe_dump(config))
    assert examined(shell, server, "--config", "hub.yaml")["hint: retention"]["status"] == "ok"


def test_an_agent_that_wants_more_context_than_there_is_is_told(shell: Shell, server: ModelServer) -> None:
    del server.pages["/version"]
    server.pages["/props"] = {"default_generation_settings": {"n_ctx": 32768}, "build_info": "b9000"}
    found = examined(shell, server)
    assert (found["engine"]["detail"], found["context"]["detail"]) == ("llama.cpp b9000", "32768 tokens")
    (shell.folder / "hub.yaml").write_text(yaml.safe_dump({"agent": {"max_context_tokens": 100_000}}))
    found = examined(shell, server)
    assert found["context"]["status"] == "weaker" and "max_context_tokens: 32768" in found["context"]["advice"]


def test_a_model_that_is_not_served_is_an_error(shell: Shell, server: ModelServer) -> None:
    config = {"llm": {"endpoints": [server.url], "model": "other"}}
    (shell.folder / "hub.yaml").write_text(yaml.safe_dump(config))
    assert "does not have the model 'other'" in shell.json("doctor", "--llm", server.url, code=1)["error"]


def test_the_key_goes_to_the_endpoints_it_is_for_and_to_no_other(shell: Shell, server: ModelServer) -> None:
    llm = {"endpoints": [server.url], "api_key": "secret-key-1"}
    (shell.folder / "hub.yaml").write_text(yaml.safe_dump({"llm": llm}))
    examined(shell, server, "--config", "hub.yaml")
    assert {seen.headers.get("authorization") for seen in server.seen} == {"Bearer secret-key-1"}
    server.seen.clear()
    (shell.folder / "hub.yaml").write_text(yaml.safe_dump({"llm": llm | {"endpoints": ["http://127.0.0.1:1/v1"]}}))
    examined(shell, server, "--config", "hub.yaml")
    assert {seen.headers.get("authorization") for seen in server.seen} == {None}


def test_a_server_that_repeats_the_key_does_not_make_it_shown(shell: Shell, server: ModelServer) -> None:
    server.usual = lambda seen: failed(400, f"no: {seen.headers['authorization']}")
    llm = {"endpoints": [server.url], "api_key": "secret-key-1"}
    (shell.folder / "hub.yaml").write_text(yaml.safe_dump({"llm": llm}))
    told = shell.json("doctor", "--llm", server.root, "--config", "hub.yaml")
    assert "no: Bearer ***" in json.dumps(told) and "secret-key-1" not in json.dumps(told)


def test_a_server_that_is_not_there_is_an_error_with_the_way_out(shell: Shell) -> None:
    told = shell.json("doctor", "--llm", "http://127.0.0.1:1", code=1)
    assert not told["ok"] and "ConnectError" in told["error"] and "is the server running" in told["fix"]
    done = shell("doctor", "--llm", "http://127.0.0.1:1")
    assert done.returncode == 1 and "fix:" in done.stdout


def test_an_address_that_is_none_is_refused(shell: Shell) -> None:
    assert "is not an address" in shell.refusal("doctor", "--llm", "localhost")


def test_people_get_a_table_and_the_advice_below(shell: Shell, server: ModelServer) -> None:
    server.tell_cached = False
    done = shell("doctor", "--llm", server.url)
    assert done.returncode == 0 and "prefix cache" in done.stdout
    assert "cached tokens: start vLLM with --enable-prompt-tokens-details" in done.stdout
    assert "checks could be better" in done.stdout
