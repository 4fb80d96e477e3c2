"""One sandbox without a zygote: for launchers that make the namespaces and mount the files themselves.

python -I -c "..." LIBRARY SOCKET_FD '["numpy", ...]' '{"id": ...}'
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from typing import NoReturn

from toolhub_sandbox.inside import figures
from toolhub_sandbox.inside.agent import Options
from toolhub_sandbox.inside.frames import FrameBuffer, receive
from toolhub_sandbox.inside.life import live, report


def main(hub_fd: str) -> NoReturn:
    hub = socket.socket(fileno=int(hub_fd))
    hub.set_inheritable(False)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.path[:] = [entry for entry in sys.path if os.path.exists(entry)]
        sys.meta_path.append(figures.Finder())
        os.environ.update(MPLBACKEND=figures.BACKEND, MPLCONFIGDIR="/tmp")  # noqa: S108 - its own
        head, _ = receive(hub, FrameBuffer(0))
        for name in head["preload"]:
            importlib.import_module(name)
        live(hub, Options(**head["options"]))
    except BaseException as exc:
        report(hub, exc)
    finally:
        os._exit(1)
