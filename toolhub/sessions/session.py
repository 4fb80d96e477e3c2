"""A session: one live conversation with a server. It is never restarted; its slot makes a new one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio

from toolhub.channel.base import Channel, ChannelClosed, ExitInfo, OpenFailed, Refused
from toolhub.config import ServerSpec, redact
from toolhub.errors import ProtocolViolation, SessionLost, StartError
from toolhub.model import PREFETCH_META, Call, Json, Listener, LogFn, Result, ServerInfo
from toolhub.overload import overload_in_error
from toolhub.sessions.lifecycle import SessionEvent, SessionState, advance

# How long an error waits for the exit code, which follows the end of the stream within milliseconds.
_EXIT_INFO_TIMEOUT_S = 0.1
_STDERR_SHOWN = 8
ERROR_META = "toolhub/jsonrpc_error"
METHOD_NOT_FOUND = -32601


class Session:
    """A server that is running and ready. Calls may run in any number of tasks at once."""

    def __init__(self, spec: ServerSpec, channel: Channel) -> None:
        self.spec = spec
        self.state = SessionState.READY
        self.calls = 0
        self._running: dict[int, Call] = {}
        self.state_loss_reported = False
        self._channel = channel
        self._closed = anyio.Event()

    def __repr__(self) -> str:
        return f"<Session {self.spec.name} {self.state.name} pid={self.pid} in_flight={self.in_flight}>"

    @property
    def info(self) -> ServerInfo:
        return self._channel.info

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The calls in flight."""
        return tuple(call.id for call in self._running.values())

    @property
    def pid(self) -> int | None:
        return self._channel.pid

    @property
    def is_ready(self) -> bool:
        return self.state is SessionState.READY

    def handle(self, event: SessionEvent) -> None:
        self.state = advance(self.state, event)

    def listen(self, listeners: Collection[Listener]) -> None:
        """Pass on what belongs to no request to these clients, which come and go."""
        self._channel.listeners = listeners

    async def knows_modern_era(self) -> bool:
        """Whether a new session with this server could be of revision 2026-07-28."""
        return await self._channel.knows_modern_era()

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification; it is dropped if the server is gone."""
        await self._channel.notify(method, params)

    def on_tools_changed(self, callback: Callable[[], None]) -> None:
        """Call `callback` (without waiting) whenever the server says that its tools changed."""
        self._channel.on_tools_changed = callback

    async def list_tools(self) -> list[Json]:
        """Return the server's tools as wire objects. Raises SessionLost or ProtocolViolation."""
        try:
            return await self._channel.list_tools()
        except ChannelClosed as exc:
            raise await self._lost(exc, "tools/list") from exc
        except Refused as exc:
            if exc.code == METHOD_NOT_FOUND:  # a server without tools need not know the method
                return []
            raise ProtocolViolation(
                f"server {self.spec.name!r} refused tools/list: {exc.message} (code {exc.code})", server=self.spec.name
            ) from exc

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Json:
        """Send any MCP request and return its wire result. Raises SessionLost or ProtocolViolation."""
        try:
            return await self._channel.request(method, params)
        except ChannelClosed as exc:
            raise await self._lost(exc, method) from exc
        except Refused as exc:
            raise ProtocolViolation(
                f"server {self.spec.name!r} refused {method}: {exc.message} (code {exc.code})", server=self.spec.name
            ) from exc

    async def call(self, call: Call) -> Result:
        """Send one call, or relay a client's request, and return what the server answered.

        A JSON-RPC error becomes an `is_error` result.

        Raises SessionLost if the server dies first, ProtocolViolation if its answer makes no sense.
        Cancelling tells the server.
        """
        self.calls += call.is_tool_call
        self._running[id(call)] = call
        call.delivery.mark_sent(anyio.current_time())
        try:
            if call.relayed is not None:
                raw = await self._channel.relay(call.relayed)
            else:
                params: Json = {"name": call.tool, "arguments": call.arguments}
                if call.early == "prefetch":
                    params["_meta"] = {PREFETCH_META: True}
                on_log = self._log_of(call)
                raw = await self._channel.request("tools/call", params, on_progress=call.on_progress, on_log=on_log)
        except ChannelClosed as exc:
            raise await self._lost(exc, call.tool, call) from exc
        except Refused as exc:
            raw = refusal(exc)
        finally:
            del self._running[id(call)]
        return Result(raw)

    def _log_of(self, call: Call) -> LogFn | None:
        # Log lines carry no request id, so on a shared session they might belong to another task's call.
        return call.on_log if self.spec.share != "hub" or self.in_flight == 1 else None

    async def _lost(self, exc: ChannelClosed, tool: str, call: Call | None = None) -> SessionLost:
        with anyio.move_on_after(_EXIT_INFO_TIMEOUT_S):
            await self._closed.wait()
        death = self._channel.exit_info()
        unsent = exc.sent == "no"
        if call is not None and unsent:
            call.delivery.mark_unsent()
            self.calls -= call.is_tool_call
        outcome = "nothing was sent" if unsent else f"{tool!r} may or may not have been executed"
        return SessionLost(
            f"server {self.spec.name!r} {_end(death)}; {outcome}{_quoted_stderr(self.spec, death)}",
            call_id=call.id if call else "",
            server=self.spec.name,
            tool=tool,
            sent="no" if unsent else "maybe",
            exit_code=death.exit_code,
        )

    async def wait_dead(self) -> None:
        await self._channel.wait_closed()

    def describe_exit(self) -> str:
        """Say in one line how the session ended, with the server's last stderr lines."""
        death = self._channel.exit_info()
        return _end(death) + _quoted_stderr(self.spec, death)

    def mark_closed(self) -> None:
        """The channel has been closed, so its exit information is complete."""
        self._closed.set()


@asynccontextmanager
async def open_session(spec: ServerSpec, opening: AbstractAsyncContextManager[Channel]) -> AsyncIterator[Session]:
    """Open the channel and hold a session on it. Raises StartError with the diagnosis."""
    session: Session | None = None
    try:
        async with opening as channel:
            session = Session(spec, channel)
            yield session
    except OpenFailed as exc:
        if session is not None:
            raise
        raise start_error(spec, exc) from exc
    finally:
        if session is not None:
            session.mark_closed()


def refusal(exc: Refused) -> Json:
    """Turn a JSON-RPC error into a result for the model. `_meta` keeps the error itself, for gateways."""
    error = {"code": exc.code, "message": exc.message, "data": exc.data}
    overload = overload_in_error(error)
    meta = {ERROR_META: error} | (overload.meta() if overload else {})
    return {"content": [{"type": "text", "text": exc.message}], "isError": True, "_meta": meta}


def start_error(spec: ServerSpec, exc: OpenFailed) -> StartError:
    """Make the error of a failed start: server, cause, exit code, stderr, and what to do."""
    death = exc.exit_info
    parts = [f"server {spec.name!r} did not start: {exc}"]
    if death.exit_code is not None and "within" not in str(exc):
        parts.append(_end(death))
    if death.cause:
        parts.append(death.cause)
    if death.noise_lines:
        parts.append(
            f"it printed {death.noise_lines} lines on stdout that are not JSON-RPC (last: {death.noise[-1]!r}); "
            "an MCP server must keep stdout for the protocol and log to stderr"
        )
    if not death.stderr and not death.noise_lines and spec.transport == "stdio" and "found" not in str(exc):
        parts.append(f"nothing on stderr; run it by hand to see more: {spec.command_line}")
    message = "; ".join(parts) + _quoted_stderr(spec, death)
    return StartError(redact(message, spec.secrets), server=spec.name, stderr_tail=_redacted(spec, death))


def _end(death: ExitInfo) -> str:
    if death.exit_code is None:
        return f"ended the connection ({death.cause})" if death.cause else "ended the connection"
    if death.exit_code < 0:
        return f"was killed by signal {-death.exit_code}"
    return f"exited with {death.exit_code}"


def _redacted(spec: ServerSpec, death: ExitInfo) -> list[str]:
    return [redact(line, spec.secrets) for line in death.stderr]


def _quoted_stderr(spec: ServerSpec, death: ExitInfo) -> str:
    lines = _redacted(spec, death)[-_STDERR_SHOWN:]
    return "; its last stderr lines:\n" + "\n".join(f"    {line}" for line in lines) if lines else ""
