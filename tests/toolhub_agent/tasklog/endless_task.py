"""A program whose task never ends: writes a log turn by turn until it is killed, or the file may grow no more.

    python endless_task.py FOLDER [LARGEST FILE, bytes]

Prints the log's path, then a line for every turn on disk. When the file is full: "full", and waits for a line; if that
is "room", the limit is lifted and one more turn follows.
"""

from __future__ import annotations

import itertools
import logging
import resource
import sys
from pathlib import Path

from tests.toolhub_agent.tasklog.written_log import a_history, a_log, a_turn


def say(text: object) -> None:
    print(text, flush=True)


def main(folder: Path, largest: int | None) -> None:
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
    log = a_log(folder)
    history, conversation = a_history(log)
    history.append_user("Who?")
    say(log.path)
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    for number in itertools.count(1):
        a_turn(history, conversation, number, result="result " * 10_000)
        if largest is not None and log.path.stat().st_size >= largest:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))  # less than the document
            log.write_miroflow()
            say("full")
            if sys.stdin.readline().strip() == "room":
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                a_turn(history, conversation, number + 1)
                say(number + 1)
            return
        say(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
