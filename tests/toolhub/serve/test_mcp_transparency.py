"""Every message of a server over stdio: what a client reads through `toolhub stdio` is what it reads directly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from real_processes import FIXTURES
from served_hub import TOOLHUB, Json, environment, write_config

REFERENCE = [sys.executable, str(FIXTURES / "tasks_server.py")]
CLIENT = {"name": "raw", "version": "1"}
TASKS = {"io.modelcontextprotocol/tasks": {}}
CAPABILITIES = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}, "extensions": TASKS}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "clientInfo": CLIENT}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
}
ANSWERS = {
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "ok"}, "model": "m", "x": 1},
    "elicitation/create": {"action": "accept", "content": {"username": "u", "email": "e"}},
}
# (method, params) of both generations; each is answered before the next is sent.
REQUESTS: list[tuple[str, Json | None]] = [
    ("tools/list", None),
    ("tools/list", {"cursor": "no such cursor"}),
    ("tools/call", {"name": "test_simple_text"}),
    ("tools/call", {"name": "test_multiple_content_types", "arguments": {}, "x": {"unknown": [1, 1.0, None]}}),
    ("tools/call", {"name": "test_tool_with_progress", "arguments": {}, "_meta": {"progressToken": "p", "y": 2}}),
    ("tools/call", {"name": "test_tool_with_progress", "arguments": {}}),
    ("tools/call", {"name": "test_error_handling", "arguments": {}}),
    ("tools/call", {"name": "no_such_tool", "arguments": {}}),
    ("tools/call", {"arguments": {}}),
    ("tools/call", {"name": "json_schema_2020_12_tool", "arguments": {"name": "n", "phone": "1"}}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "test_prompt_with_arguments", "arguments": {"arg1": "1", "arg2": "2"}}),
    ("prompts/get", {"name": "no such prompt"}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "test://static-text"}),
    ("resources/read", {"uri": "test://template/7/data"}),
    ("resources/read", {"uri": "test://nothing"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "arg1", "value": "v"}}),
    ("custom/method", {"z": 1}),
]
HANDSHAKE: list[tuple[str, Json | None]] = [
    ("ping", None),
    ("logging/setLevel", {"level": "info"}),
    ("tools/call", {"name": "test_tool_with_logging", "arguments": {}}),
    ("tools/call", {"name": "test_sampling", "arguments": {"prompt": "hello"}}),
    ("tools/call", {"name": "test_elicitation", "arguments": {"message": "who?"}}),
    ("tools/call", {"name": "test_trigger_prompt_change", "arguments": {}}),
    ("tools/call", {"name": "test_trigger_tool_change", "arguments": {}}),
    ("resources/subscribe", {"uri": "test://watched-resource"}),
    ("resources/unsubscribe", {"uri": "test://watched-resource"}),
]
MODERN: list[tuple[str, Json | None]] = [
    ("server/discover", None),
    ("tools/call", {"name": "test_input_required_result_elicitation", "arguments": {}}),
    ("tools/call", {"name": "test_missing_capability", "arguments": {}}),
    ("tools/call", {"name": "multi_input", "arguments": {}}),
    ("tasks/get", {"taskId": "no such task"}),
    ("tasks/update", {"taskId": "no such task", "inputResponses": {}}),
    ("tasks/cancel", {"taskId": "no such task"}),
    ("tasks/list", {}),
    ("ping", None),
    ("initialize", HELLO),
]


@contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        env=environment(),
    ) as process:
        yield process


def messages(command: Sequence[str], folder: Path, *, is_modern: bool) -> list[Json]:
    """Play a client; return every message that it reads."""
    read: list[Json] = []
    with started(command, folder) as process:
        assert process.stdin is not None and process.stdout is not None

        def send(message: Json) -> None:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()

        def ask(number: int, method: str, params: Json | None) -> None:
            assert process.stdout is not None
            if is_modern:
                params = {**(params or {}), "_meta": {**((params or {}).get("_meta") or {}), **ENVELOPE}}
            send({"id": number, "method": method, **({"params": params} if params is not None else {})})
            while True:
                message = json.loads(process.stdout.readline())
                read.append(message)
                if "method" not in message and message["id"] == number:
                    return
                if "id" in message:
                    send({"id": message["id"], "result": ANSWERS.get(message["method"], {})})

        if not is_modern:
            ask(0, "initialize", HELLO)
            send({"method": "notifications/initialized"})
        for number, (method, params) in enumerate(REQUESTS + (MODERN if is_modern else HANDSHAKE), 1):
            ask(number, method, params)
        process.stdin.close()
    return read


def comparable(message: Json) -> Json:
    """Leave out what may differ: who answers, and what the server numbers or times itself."""
    kept: Any = json.loads(json.dumps(message))
    if isinstance(result := kept.get("result"), dict):
        result.pop("serverInfo", None)
        (result.get("_meta") or {}).pop("io.modelcontextprotocol/serverInfo", None)
        if result.get("resultType") == "task":
            result |= dict.fromkeys(("taskId", "createdAt", "lastUpdatedAt"), "of the server")
    if "method" in kept and "id" in kept:
        kept["id"] = "of the server"
    assert isinstance(kept, dict)
    return kept


@pytest.mark.parametrize("is_modern", [False, True], ids=["handshake", "modern"])
def test_only_the_name_of_the_server_differs(is_modern: bool, tmp_path: Path) -> None:
    command, *arguments = REFERENCE
    config = write_config(tmp_path, servers={"reference": {"command": command, "args": arguments}})
    direct = messages(REFERENCE, tmp_path, is_modern=is_modern)
    relayed = messages([*TOOLHUB, "stdio", "--config", str(config)], tmp_path, is_modern=is_modern)
    assert [*map(comparable, relayed)] == [*map(comparable, direct)]
