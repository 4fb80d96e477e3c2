"""The zygote's account of its sandboxes."""

from __future__ import annotations

import subprocess
import sys

# A program of its own: a zygote waits for every child of its process.
PROGRAM = """
import os
import socket

from toolhub_sandbox.inside.zygote import ZygoteSettings, _Zygote

control, hub = socket.socketpair()
settings = ZygoteSettings(
    isolation="namespaces", preload=[], folders=[], uid=0, gid=0, host_network=False, memory_bytes=1 << 20
)
zygote = _Zygote(control, hub.fileno(), settings)
before = os.listdir("/proc/self/fd")
agent = os.fork()
if agent == 0:
    os._exit(0)
os.waitid(os.P_PID, agent, os.WEXITED | os.WNOWAIT)
socket.send_fds(zygote._spawned_sender, [b"box"], [control.fileno()])
zygote._spawned_sender.send(f"box {agent}".encode())
zygote._reap()
zygote._note_spawned()
assert zygote._agents == {}
assert zygote._watch.file_systems == {}
assert os.listdir("/proc/self/fd") == before
"""


def test_a_sandbox_that_ends_before_its_messages_are_read_is_forgotten() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
