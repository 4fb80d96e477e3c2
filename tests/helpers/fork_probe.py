"""A program that prints what it sees of its own process, as one line of JSON, for exec and fork to be compared."""

import atexit
import json
import os
import pickle
import signal
import sys
import threading


class Pickled:
    """Found again by its name in `__main__`."""


def stream(file):
    return [
        type(file).__name__,
        *(file.name, file.mode, file.encoding, file.errors, file.line_buffering, file.write_through),
        *(type(file.buffer).__name__, file.isatty(), file.newlines, file.fileno()),
    ]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def status(*names):
    lines = read("/proc/self/status").decode().splitlines()
    return [line for line in lines if line.split(":")[0] in names]


def is_session_leader():
    return os.getpid() == os.getsid(0) == os.getpgid(0)


def seen():
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "orig_argv": getattr(sys, "orig_argv", None),
        "cmdline": ascii(read("/proc/self/cmdline").rstrip(b"\0")),
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "path": sys.path,
        "flags": str(sys.flags),
        "xoptions": str(sys._xoptions),
        "warnoptions": sys.warnoptions,
        "executable": [sys.executable, sys.prefix, sys.base_prefix],
        "main": {
            name: str(getattr(main, name, None)).split(" at 0x")[0] for name in vars(main) if name.startswith("__")
        },
        "own": [__name__, __file__, __package__, str(__spec__)[:30], main is sys.modules[__name__]],
        "pickled": type(pickle.loads(pickle.dumps(Pickled()))) is Pickled,
        "signals": {str(number): str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()},
        "kernel": status("SigBlk", "SigIgn", "SigCgt", "Name", "Threads", "NoNewPrivs"),
        "wakeup": signal.set_wakeup_fd(-1),
        "fds": sorted(os.listdir("/proc/self/fd"))[:3],
        "fd_count": len([fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2]) - 1,
        "threads": threading.active_count(),
        "thread": threading.current_thread() is threading.main_thread(),
        "stdio": [stream(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
        "originals": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "gc": __import__("gc").isenabled(),
        "finders": [str(finder)[:40] for finder in sys.meta_path],
        "leader": is_session_leader(),
        "umask": os.umask(0o22),
        "recursion": sys.getrecursionlimit(),
        "exc": str(sys.exc_info()),
    }


if __name__ == "__main__":
    print(json.dumps(seen()), flush=True)
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "atexit":
        atexit.register(print, "at exit")
        threading.Timer(0.05, print, ("from a thread",)).start()
    elif what == "text":
        sys.exit("a text")
    elif what == "code":
        sys.exit(7)
    elif what == "raise":
        raise ValueError("nobody catches this")
    elif what == "chain":
        try:
            dict[str, int]()["missing"]
        except KeyError as exc:
            raise RuntimeError("because of that") from exc
    elif what == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif what == "unflushed":
        sys.stdout.write("no newline")
    elif what == "stdin":
        print(ascii(sys.stdin.read()))
    elif what == "random":
        import random
        import uuid

        print(random.random(), uuid.uuid4(), os.urandom(4))
