"""Answers the first requests of `toolhub stdio` while another thread imports the gateway.

Only the standard library is imported here. Where no answers are kept, nothing is done.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import threading
from collections.abc import Sequence

from toolhub.catalog.first_answers import EarlyMessages, FirstAnswers, FirstRequests, answers_path

_MODULES = ("toolhub.cli.app", "toolhub.cli.stdio", "toolhub.hub", "toolhub.serve.stdio")
_READ_BYTES = 1 << 16
# First requests are small. What is longer waits for the gateway.
_MOST_BYTES = 1 << 20
# The importing thread keeps the interpreter for at most this time; by default it is 5 ms, several times per answer.
_SWITCH_S = 0.0005


def answer_early(arguments: Sequence[str]) -> EarlyMessages | None:
    """Answer requests at stdin until one needs the gateway, or the gateway is imported. Return what was read.

    None: no answers are kept for these arguments, and nothing was read.
    """
    answers = FirstAnswers(answers_path(arguments, os.environ)).read()
    if not answers:
        return None
    is_imported, imported = os.pipe()
    importing = threading.Thread(target=_import, args=(imported,), daemon=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        importing.start()
        received, has_ended = _serve(FirstRequests(answers), is_imported)
        if has_ended and not received.rest:
            # The client has got all its answers. To wait for the imports would only keep it waiting.
            os._exit(0)
        importing.join()
    except KeyboardInterrupt:
        # The interpreter cannot end in order while a thread is within native code that it has called.
        os._exit(130)
    finally:
        sys.setswitchinterval(interval)
    os.close(is_imported)
    return received


def _import(imported: int) -> None:
    try:
        for module in _MODULES:
            importlib.import_module(module)
    except Exception:  # noqa: S110  # the main thread imports it again, and says what is wrong
        pass
    finally:
        os.close(imported)


def _serve(requests: FirstRequests, is_imported: int) -> tuple[EarlyMessages, bool]:
    """Return what was read, and whether stdin has ended."""
    received, rest = EarlyMessages([], b""), b""
    while len(rest) < _MOST_BYTES:
        ready, _, _ = select.select([0, is_imported], [], [])
        if is_imported in ready:
            break
        chunk = os.read(0, _READ_BYTES)
        if not chunk:
            return received._replace(rest=rest), True
        rest += chunk
        while b"\n" in rest:
            line, _, beyond = rest.partition(b"\n")
            if not _take(line, requests, received):
                return received._replace(rest=rest), False
            rest = beyond
    return received._replace(rest=rest), False


def _take(line: bytes, requests: FirstRequests, received: EarlyMessages) -> bool:
    """Answer one message. Return False if only the gateway can."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return False
    is_request = isinstance(message, dict) and "method" in message and "id" in message
    told = requests.answer(message) if is_request else None
    if is_request and told is None:
        return False
    received.messages.append((message, told))
    if told is not None:
        _write(f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{told}}}\n'.encode())
    return True


def _write(data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(1, view) :]
    except OSError:
        pass  # the client is gone; the end of stdin ends this process
