"""A stand-in of the E2B service on one loopback port: control plane, in-sandbox agent and code interpreter.

The unmodified SDK talks to it (E2B_API_URL and E2B_SANDBOX_URL). It is a double of the *service*: sandboxes are real
processes in temporary folders of this machine, without any isolation, so it runs trusted test code only. It records
what reaches it, and fails on request.
"""

from __future__ import annotations

import base64
import re
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
from e2b.envd.filesystem.filesystem_connect import FilesystemASGIApplication
from e2b.envd.process.process_connect import ProcessASGIApplication
from loopback_app import serve_app
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.toolhub_sandbox.e2b.standin_answers import (
    Fault,
    Lines,
    context_description,
    error,
    gone,
    iso,
    pieces,
    sandbox_description,
)
from tests.toolhub_sandbox.e2b.standin_envd import Folders, Processes
from tests.toolhub_sandbox.e2b.standin_machine import Machine

PATIENCE_S = 60.0
KEY = "e2b_0123456789-the-key"


class StandIn:
    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.url = ""
        self.machines: dict[str, Machine] = {}
        self.requests: list[str] = []
        self.executed: list[str] = []
        self.printed = ""
        """By code, in all sandboxes."""
        self.started: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.refused_users: set[str] = set()
        """Accounts that the template does not have."""
        self.renewed: list[tuple[str, int]] = []
        self.killed: list[str] = []
        self.faults: list[Fault] = []
        self.answer_creations = anyio.Event()
        """Creations are made at once but answered only when this is set."""
        self.answer_creations.set()
        self._held: list[anyio.Event] = []
        self._tasks = tasks
        self._changed = anyio.Event()
        self._rest = Starlette(
            routes=[Route(path, endpoint, methods=methods) for path, endpoint, methods in self._routes()]
        )
        self._processes = ProcessASGIApplication(Processes(self.running, self._on_start))
        self._folders = FilesystemASGIApplication(Folders(self.running, self._on_start))

    def _on_start(self, command: str) -> None:
        self.started.append(command)
        self.changed()

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "stdout":
            self.printed += message["text"]
            self.changed()

    def fail(self, pattern: str, status: int = 0, **fields: Any) -> Fault:
        """Stage a fault; remove it from `faults` to end it."""
        fault = Fault(pattern, status, **fields)
        self.faults.append(fault)
        if fault.until is not None:
            self._held.append(fault.until)
        return fault

    async def until(self, condition: Callable[[], object]) -> None:
        """Return when something that reached the service has made `condition` true."""
        with anyio.fail_after(PATIENCE_S):
            while not condition():
                await self._changed.wait()

    def changed(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def end(self) -> None:
        """Let go of whoever waits, and end every process."""
        self.faults.clear()
        for event in self._held:
            event.set()
        self.answer_creations.set()
        for machine in self.machines.values():
            machine.kill()

    async def wait_ended(self) -> None:
        """Return when the event loop has seen every process end: what it has not, it warns about in a later test."""
        for machine in self.machines.values():
            for process in list(machine.processes.values()):
                await process.wait()
                # A descendant that was killed, too, and has not quite ended may still hold the other end of its pipes.
                process._transport.close()  # type: ignore[attr-defined]
        for _ in range(5):  # closing a transport takes the loop a round or two
            await anyio.sleep(0)

    @property
    def alive(self) -> list[str]:
        self.end_leases()
        return [machine.id for machine in self.machines.values() if machine.is_running]

    def end_leases(self) -> None:
        for machine in self.machines.values():
            if time.time() >= machine.ends_at:
                machine.kill()

    def running(self, headers: Any) -> Machine | None:
        self.end_leases()
        machine = self.machines.get(headers.get("e2b-sandbox-id", ""))
        return machine if machine is not None and machine.is_running else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        line = f"{scope['method']} {scope['path']}"
        self.requests.append(line)
        self.changed()
        for fault in self.faults:
            if fault.times and re.fullmatch(fault.pattern, line):
                fault.times -= 1
                if await fault(scope, receive, send):
                    return
        if self._user(scope) in self.refused_users:
            await error(401, "no such user")(scope, receive, send)
        elif scope["path"].startswith("/process.Process/"):
            await self._processes(scope, receive, send)
        elif scope["path"].startswith("/filesystem.Filesystem/"):
            await self._folders(scope, receive, send)
        else:
            await self._rest(scope, receive, send)
        self.changed()

    @staticmethod
    def _user(scope: Any) -> str:
        """The account a request is for: basic authentication without a password."""
        kind, _, name = dict(scope["headers"]).get(b"authorization", b"").decode().partition(" ")
        return base64.b64decode(name).decode().rstrip(":") if kind == "Basic" else ""

    def _routes(self) -> list[tuple[str, Any, list[str]]]:
        return [
            ("/v2/sandboxes", self._create, ["POST"]),
            ("/v2/sandboxes", self._list, ["GET"]),
            ("/sandboxes/{id}", self._kill, ["DELETE"]),
            ("/sandboxes/{id}/timeout", self._renew, ["POST"]),
            ("/sandboxes/{id}/metrics", self._metrics, ["GET"]),
            ("/health", self._health, ["GET"]),
            ("/files", self._download, ["GET"]),
            ("/files", self._upload, ["POST"]),
            ("/execute", self._execute, ["POST"]),
            ("/contexts", self._contexts, ["GET", "POST"]),
            ("/contexts/{context}/restart", self._restart, ["POST"]),
            ("/contexts/{context}", self._remove, ["DELETE"]),
        ]

    # Control plane

    async def _create(self, request: Request) -> Response:
        if request.headers.get("x-api-key") != KEY:
            return error(401, f"the key {request.headers.get('x-api-key')} is not valid")
        asked = await request.json()
        self.created.append(asked)
        machine = Machine(asked, self._tasks)
        self.machines[machine.id] = machine
        self.changed()
        await self.answer_creations.wait()
        return JSONResponse(sandbox_description(machine), 201)

    async def _list(self, request: Request) -> Response:
        wanted = dict(urllib.parse.parse_qsl(request.query_params.get("metadata", "")))
        found = [machine for machine in self.machines.values() if machine.is_running]
        return JSONResponse(
            [sandbox_description(one) for one in found if wanted.items() <= one.request["metadata"].items()]
        )

    async def _kill(self, request: Request) -> Response:
        self.killed.append(request.path_params["id"])
        machine = self.machines.get(request.path_params["id"])
        if machine is None or not machine.is_running:
            return error(404, "not found")
        machine.kill()
        return Response(status_code=204)

    async def _renew(self, request: Request) -> Response:
        self.end_leases()
        machine = self.machines.get(request.path_params["id"])
        if machine is None or not machine.is_running:
            return error(404, "not found")
        seconds = (await request.json())["timeout"]
        machine.ends_at = time.time() + seconds
        self.renewed.append((machine.id, seconds))
        return Response(status_code=204)

    async def _metrics(self, request: Request) -> Response:
        now = time.time()
        numbers = {"cpuCount": 2, "cpuUsedPct": 1.5, "memUsed": 123_456_789, "memTotal": 1 << 30, "memCache": 0}
        disk = {"diskUsed": 1, "diskTotal": 2, "timestamp": iso(now), "timestampUnix": int(now)}
        return JSONResponse([{**numbers, **disk}])

    # Agent

    async def _health(self, request: Request) -> Response:
        return Response(status_code=204) if self.running(request.headers) else gone(request)

    async def _download(self, request: Request) -> Response:
        machine = self.running(request.headers)
        if machine is None:
            return gone(request)
        path = request.query_params["path"]
        place = machine.path(path)
        if not place.exists():
            return error(404, f"path '{path}' does not exist")
        if place.is_dir():
            return error(400, f"path '{path}' is a directory")
        return StreamingResponse(pieces(place), media_type="application/octet-stream")

    async def _upload(self, request: Request) -> Response:
        machine = self.running(request.headers)
        if machine is None:
            return gone(request)
        path = request.query_params["path"]
        place = machine.path(path)
        if place.is_dir():
            return error(400, f"path is a directory: {path}")
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            if request.headers["content-type"].startswith("application/octet-stream"):
                async for piece in request.stream():
                    file.write(piece)
            else:
                async with request.form() as form:
                    for upload in form.values():
                        assert isinstance(upload, UploadFile)
                        file.write(await upload.read())
        return JSONResponse([{"path": path, "name": place.name, "type": "file"}])

    # Code interpreter

    async def _execute(self, request: Request) -> Response:
        machine = self.running(request.headers)
        if machine is None:
            return PlainTextResponse("The sandbox was not found", 502)
        asked = await request.json()
        context = machine.contexts.get(asked["context_id"] or next(iter(machine.contexts)))
        if context is None:
            return PlainTextResponse(f"Context {asked['context_id']} not found", 404)
        self.executed.append(asked["code"])
        self.changed()
        return Lines(context.execute(asked["code"]), self._on_message)

    async def _contexts(self, request: Request) -> Response:
        machine = self.running(request.headers)
        if machine is None:
            return PlainTextResponse("The sandbox was not found", 502)
        if request.method == "POST":
            return JSONResponse(context_description(machine.add_context()))
        return JSONResponse([context_description(context) for context in machine.contexts.values()])

    async def _restart(self, request: Request) -> Response:
        machine = self.running(request.headers)
        if machine is None:
            return PlainTextResponse("The sandbox was not found", 502)
        machine.contexts[request.path_params["context"]].restart()
        return Response(status_code=204)

    async def _remove(self, request: Request) -> Response:
        machine = self.running(request.headers)
        if machine is None:
            return PlainTextResponse("The sandbox was not found", 502)
        machine.contexts.pop(request.path_params["context"]).kill()
        return Response(status_code=204)


@asynccontextmanager
async def serve_standin() -> AsyncIterator[StandIn]:
    """Run the service in this event loop; leaving it ends every process of its sandboxes."""
    async with anyio.create_task_group() as tasks:
        service = StandIn(tasks)
        try:
            async with serve_app(service) as service.url:
                try:
                    yield service
                finally:
                    service.end()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(PATIENCE_S):
                await service.wait_ended()
            tasks.cancel_scope.cancel()
