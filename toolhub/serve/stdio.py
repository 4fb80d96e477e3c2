"""The gateway on this process's stdin and stdout: one client, whose task is the process's.

While it is imported the client has been told its first answers already (`toolhub/catalog/first_answers.py`). The
gateway answers these requests too, because they introduce the client and start the servers. Their answers are not sent
again.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from toolhub.catalog.first_answers import EarlyMessages
from toolhub.channel.jsonrpc.pipes import StdinStream, StdoutStream
from toolhub.config.models import HubSettings
from toolhub.model import Era, Json
from toolhub.serve.first_answers_writer import FirstAnswersWriter
from toolhub.serve.mcp.client import INVALID_REQUEST, ClientRequest, McpClient
from toolhub.serve.mcp.gateway import Gateway, error_object, version_of
from toolhub.task import LISTS, HubTask

logger = logging.getLogger(__name__)

# The longest message of the client.
_LONGEST_BYTES = 1 << 26


_ENVELOPE_IN_HANDSHAKE = (
    "this connection serves the handshake protocol era; "
    "requests carrying the 2026-07-28 envelope are not accepted on it"
)
_HANDSHAKE_IN_MODERN = "connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted"


@dataclass
class _StandardStreams:
    """This process's own streams, seen from the client: what it writes is read, and what it reads is written."""

    stdin: int
    stdout: int


class _ToClient:
    """The only stream to the client: the `Output` of every request."""

    def __init__(self, sink: StdinStream) -> None:
        self._sink = sink

    def send(self, message: Json) -> None:
        try:
            self._sink.send(message)
        except anyio.BrokenResourceError:
            pass  # the client is gone; the end of stdin ends this process

    def close_early(self) -> None:
        """There is no stream of its own that could be resumed."""


class StdioConnection:
    """The client at the other end. Its first request decides the era: a handshake, or revision 2026-07-28."""

    def __init__(
        self,
        task: HubTask,
        gateway: Gateway,
        output: _ToClient,
        tasks: anyio.abc.TaskGroup,
        writer: FirstAnswersWriter | None = None,
    ) -> None:
        self._task = task
        self._gateway = gateway
        self._output = output
        self._tasks = tasks
        self._writer = writer
        self._client = McpClient(output)
        self._era: Era | None = None
        """The first request decides it."""

    def take(self, message: Any, told: str | None = None) -> bool:
        """Take one message. Returns False for what is not JSON-RPC. told: the result that the client has already."""
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return False
        method, number = message.get("method"), message.get("id")
        if not isinstance(method, str):
            self._client.take_answer(message)
        elif number is None:
            self._tasks.start_soon(self._gateway.notified, self._task, self._client, method, message.get("params"))
        else:
            self._tasks.start_soon(self._answer, message, told)
        return True

    async def _answer(self, message: Json, told: str | None) -> None:
        number, method, params = message["id"], message["method"], message.get("params")
        if not isinstance(params, dict | None):
            self._output.send(_error(number, error_object(INVALID_REQUEST, "params must be an object")))
            return
        error = self._wrong_era(method, params)
        if error is not None:
            self._output.send(_error(number, error))
            return
        client = self._client if self._era == "handshake" else None
        spoken = self._client.version or str((params or {}).get("protocolVersion"))
        version = spoken if client is not None else str(version_of(params))
        request = ClientRequest(number, method, params, self._task, self._output, client, version)
        with anyio.CancelScope() as scope:
            self._client.running[number] = scope
            try:
                answer = await self._gateway.respond(request)
            finally:
                if self._client.running.get(number) is scope:
                    del self._client.running[number]
            await self._tell(request, answer, told)

    async def _tell(self, request: ClientRequest, answer: Json, told: str | None) -> None:
        if told is None:
            self._output.send(answer)
        elif to_json(answer.get("result"), inf_nan_mode="null") == told.encode():
            return
        elif self._era == "handshake" and request.method in LISTS:
            self._client.notify(f"notifications/{LISTS[request.method]}/list_changed", None)
        if self._writer is not None:
            await self._writer.keep(request, self._tasks)

    def _wrong_era(self, method: str, params: Json | None) -> Json | None:
        """Return the error for a request that does not belong to the era of this connection, in the SDK's words."""
        is_enveloped = version_of(params) is not None and method != "initialize"
        if self._era is None:
            self._era = "modern" if is_enveloped else "handshake"
        if self._era == "handshake":
            return error_object(INVALID_REQUEST, _ENVELOPE_IN_HANDSHAKE) if is_enveloped else None
        if method == "initialize":
            asked = (params or {}).get("protocolVersion")
            data = {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": asked}
            return error_object(UNSUPPORTED_PROTOCOL_VERSION, _HANDSHAKE_IN_MODERN, data)
        verdict = classify_inbound_request({"method": method, "params": params})
        if isinstance(verdict, InboundLadderRejection):
            return error_object(verdict.code, verdict.message, verdict.data)
        return None


def _error(number: int | str, error: Json) -> Json:
    return {"jsonrpc": "2.0", "id": number, "error": error}


async def serve_stdio(
    task: HubTask,
    settings: HubSettings,
    *,
    received: EarlyMessages | None = None,
    writer: FirstAnswersWriter | None = None,
) -> None:
    """Serve the client at stdin and stdout until stdin ends. received: what it has sent already."""
    # What a library prints must not come between the messages.
    streams = _StandardStreams(stdin=os.dup(sys.stdout.fileno()), stdout=os.dup(sys.stdin.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.set_blocking(streams.stdout, False)
    async with anyio.create_task_group() as tasks:
        source = StdoutStream(streams, limit=_LONGEST_BYTES)
        sink = StdinStream(streams, tasks, source.fail)
        connection = StdioConnection(task, Gateway(settings, tasks), _ToClient(sink), tasks, writer)
        if received is not None:
            for message, told in received.messages:
                connection.take(message, told)
            source.put_back(received.rest)
        await source.receive_loop(connection.take)
        if source.failure:
            logger.error("the connection to the client was ended: %s", source.failure)
        if writer is not None:
            await writer.finish(tasks)
        sink.close()
        tasks.cancel_scope.cancel()
