"""A sandbox that is none: limits and a folder of its own, but the same files, network and user as the hub."""

from __future__ import annotations

import os
import socket
from typing import NoReturn

from toolhub_sandbox.inside import isolate, syscalls
from toolhub_sandbox.inside.agent import Agent, Options


def become_unisolated(hub: socket.socket, options: Options) -> NoReturn:
    """Be the agent of an unisolated sandbox; `options.home` is its folder."""
    from toolhub_sandbox.inside.zygote import introduce

    syscalls.set_name("sbx-agent")
    os.setsid()
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    os.environ.clear()
    os.environ.update(isolate.environment(options, home=options.home))
    isolate.set_limits(options)
    os.chdir(options.home)
    introduce(hub, None)
    Agent(hub, options, become_worker=isolate.become_worker).serve()
