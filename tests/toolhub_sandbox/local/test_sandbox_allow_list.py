"""A profile with a list of hosts: these are reached through the proxy, and nothing else is."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
from toolhub_sandbox import Execution, Sandbox, Sandboxes

from toolhub.config import SandboxSettings

pytestmark = pytest.mark.anyio
FETCH = """
import os, urllib.request
os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""  # which spares the sandbox's own services the proxy
proxy = urllib.request.ProxyHandler({{"http": os.environ["HTTP_PROXY"]}})
urllib.request.build_opener(proxy).open({url!r}, timeout=5).read().decode()
"""
CONNECT = "import socket; socket.create_connection(('127.0.0.1', {port}), 5)"


SERVICE = """
from http.server import BaseHTTPRequestHandler, HTTPServer

class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from outside")

    def log_message(self, *_):
        pass

with HTTPServer(("127.0.0.1", 0), Page) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
"""


@contextmanager
def a_service() -> Iterator[int]:
    """A service of this machine, not of this process, which is the hub's; gives its port."""
    with subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def run(sandbox: Sandbox, code: str) -> Execution:
    with anyio.fail_after(20):
        return await sandbox.exec_code(code)


async def test_only_what_is_listed_is_reached_and_only_through_the_proxy() -> None:
    with a_service() as listed, a_service() as other:
        web = {"network": {"allow": [f"127.0.0.1:{listed}"]}, "pool": 0}
        async with Sandboxes(SandboxSettings.model_validate({"profiles": {"web": web}})) as sandboxes:
            scope = sandboxes.for_owner("t")
            sandbox = await scope.create("web")
            reached = await run(sandbox, FETCH.format(url=f"http://127.0.0.1:{listed}/"))
            assert reached.result == "'from outside'", reached.error
            refused = await run(sandbox, FETCH.format(url=f"http://127.0.0.1:{other}/"))
            assert refused.error is not None
            assert f"127.0.0.1:{other} is not in sandbox.profiles.web.network.allow" in refused.error.value
            direct = await run(sandbox, CONNECT.format(port=listed))
            assert direct.error is not None and direct.error.name == "ConnectionRefusedError"


async def test_the_proxy_ends_with_its_sandbox_and_serves_no_other() -> None:
    with a_service() as listed:
        profiles = {"web": {"network": {"allow": [f"127.0.0.1:{listed}"]}, "pool": 0}, "bare": {"pool": 0}}
        async with Sandboxes(SandboxSettings.model_validate({"profiles": profiles})) as sandboxes:
            scope = sandboxes.for_owner("t")
            first, second = await scope.create("web"), await scope.create("web")
            await first.kill()
            assert (await run(second, FETCH.format(url=f"http://127.0.0.1:{listed}/"))).result == "'from outside'"
            bare = await scope.create("bare")
            alone = await run(bare, CONNECT.format(port=3128))
            assert alone.error is not None and alone.error.name == "ConnectionRefusedError"


async def test_the_hub_itself_is_not_reached_even_where_its_address_is_listed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub.setblocking(False)
        port = hub.getsockname()[1]
        web = {"network": {"allow": [f"127.0.0.1:{port}"]}, "pool": 0}
        async with Sandboxes(SandboxSettings.model_validate({"profiles": {"web": web}})) as sandboxes:
            sandbox = await sandboxes.for_owner("t").create("web")
            refused = await run(sandbox, FETCH.format(url=f"http://127.0.0.1:{port}/v1/tasks"))
        assert refused.error is not None and f"127.0.0.1:{port} is the hub itself" in refused.error.value
        with pytest.raises(BlockingIOError):
            hub.accept()
