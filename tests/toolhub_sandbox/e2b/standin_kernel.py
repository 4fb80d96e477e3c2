"""The interpreter of a stand-in sandbox: a program that runs code from stdin, one JSON line each, for trusted tests.

It answers on the descriptor it is given, in the words of the service's /execute. SIGINT raises KeyboardInterrupt in
running code and does nothing between two pieces of code.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
import traceback
from typing import Any

replies = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8", buffering=1)


def say(kind: str, **fields: Any) -> None:
    replies.write(json.dumps({"type": kind, **fields}) + "\n")


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, text: str) -> int:
        if text:
            say(self.name, text=text, timestamp=0)
        return len(text)

    def flush(self) -> None:
        pass


def show(value: Any, *, is_result: bool = False) -> None:
    shown = {"text": repr(value)}
    for kind in ("html", "png"):
        if (method := getattr(value, f"_repr_{kind}_", None)) is not None:
            shown[kind] = method()
    say("result", is_main_result=is_result, **shown)


def run(code: str, names: dict[str, Any]) -> None:
    tree = ast.parse(code)
    last: ast.Expr | None = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        tree.body.pop()
    exec(compile(tree, "<cell>", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
        if value is not None:
            show(value, is_result=True)


def main() -> None:
    sys.stdout, sys.stderr = Stream("stdout"), Stream("stderr")
    names: dict[str, Any] = {"__name__": "__main__", "display": show}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for count, line in enumerate(sys.stdin, start=1):
        say("number_of_executions", execution_count=count)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            run(json.loads(line), names)
        except BaseException as exc:
            say("error", name=type(exc).__name__, value=str(exc), traceback=traceback.format_exc())
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        say("end_of_execution")


main()
