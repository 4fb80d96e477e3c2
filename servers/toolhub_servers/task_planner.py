"""An MCP server that keeps a task's plan as a list of todos: MiroFlow's `task_planner`.

The list is one file per task. It is replaced as a whole under a lock, so it survives a restart of the server and is
safe with two servers of one task. Unlike in the original, a file that cannot be read is set aside with a message
and never taken for an empty plan, and the default folder does not depend on the working directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from anyio import to_thread
from mcp.server import MCPServer

from toolhub.extensions import BuiltinContext
from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.server import make_server, make_tool

SHOWN_ID = 8
# Of the 255 bytes of a file name; drafts and locks have longer endings.
LONGEST_NAME, NAME_START = 200, 160
# A limit, because each change writes the whole file.
MAX_TODOS, MAX_TITLE = 500, 2000


@dataclass
class Todo:
    id: str
    title: str
    completed: bool = False


class PlanError(Exception):
    """The text is for the model."""


def create_server(
    *, context: BuiltinContext | None = None, data_dir: str | None = None, task_id: str | None = None
) -> MCPServer:
    """Return the server. Raises ValueError if the folder cannot be made.

    data_dir: where the lists are kept; None: `todo_lists` in the user's state folder. task_id: the task of the list;
    None: the task that the hub runs this server for.
    """
    owner = task_id or (context.owner if context is not None else "default")
    plan = Plan(Path(data_dir) if data_dir else default_folder(), owner)

    async def add_todo(titles: list[str]) -> str:
        """Add one or more todos to the plan of the current task.

        Plan first: before you start to work, add a todo for each step, and add more when new steps turn up.

        Args:
            titles: What is to be done, one text per todo.

        Returns:
            The whole plan, with the id of each todo.
        """
        return await to_thread.run_sync(plan.add, titles)

    async def list_todos() -> str:
        """Show the plan of the current task: every todo with its id and whether it is done."""
        return await to_thread.run_sync(plan.show)

    async def complete_todo(todo_ids: list[str]) -> str:
        """Mark todos as done, as soon as each of them is.

        Args:
            todo_ids: Ids as the plan shows them; their first 8 characters are enough.

        Returns:
            The whole plan.
        """
        return await to_thread.run_sync(plan.complete, todo_ids)

    async def delete_todo(todo_ids: list[str]) -> str:
        """Remove todos that are no longer wanted.

        Args:
            todo_ids: Ids as the plan shows them; their first 8 characters are enough.

        Returns:
            The whole plan.
        """
        return await to_thread.run_sync(plan.delete, todo_ids)

    tools = [make_tool(add_todo), make_tool(list_todos), make_tool(complete_todo), make_tool(delete_todo)]
    return make_server("todo-list-server", tools=tools)


class Plan:
    """One task's todos in a file. Methods block and return the plan as Markdown."""

    def __init__(self, folder: Path, task_id: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ValueError(f"data_dir {str(folder)!r} cannot be made: {exc.strerror}") from exc
        self.file = folder / f"todos_{file_name(task_id)}.json"

    def __repr__(self) -> str:
        return f"<Plan {self.file}>"

    def add(self, titles: list[str]) -> str:
        def change(todos: list[Todo]) -> str:
            wanted = [title.strip()[:MAX_TITLE] for title in titles if title.strip()]
            if not wanted:
                raise PlanError("no titles were given")
            if len(todos) + len(wanted) > MAX_TODOS:
                raise PlanError(f"a plan has at most {MAX_TODOS} todos; delete some first")
            todos += [Todo(str(uuid.uuid4()), title) for title in wanted]
            return f"✅ Added {len(wanted)} todo(s)"

        return self._changed(change)

    def show(self) -> str:
        return self._changed(lambda todos: "")

    def complete(self, todo_ids: list[str]) -> str:
        def change(todos: list[Todo]) -> str:
            for todo in found(todos, todo_ids):
                todo.completed = True
            return f"✅ Completed {len(todo_ids)} todo(s)"

        return self._changed(change)

    def delete(self, todo_ids: list[str]) -> str:
        def change(todos: list[Todo]) -> str:
            gone = found(todos, todo_ids)
            todos[:] = [todo for todo in todos if todo not in gone]
            return f"🗑️ Deleted {len(gone)} todo(s)"

        return self._changed(change)

    def _changed(self, change: Callable[[list[Todo]], str]) -> str:
        """Apply a change to the list, and save the list if it changed. A failure changes nothing."""
        try:
            with self._locked():
                todos = self._load()
                before = [asdict(todo) for todo in todos]
                try:
                    message = change(todos)
                except PlanError as problem:
                    todos, message = [Todo(**todo) for todo in before], f"❌ Error: {problem}"
                if [asdict(todo) for todo in todos] != before:
                    self._save(todos)
        except PlanError as problem:
            todos, message = [], f"❌ Error: {problem}"
        except OSError as exc:
            return f"❌ Error: the plan cannot be kept in {self.file.parent}: {exc.strerror}"
        return markdown(todos, message)

    def _load(self) -> list[Todo]:
        try:
            return [Todo(**todo) for todo in json.loads(self.file.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as exc:
            aside = self.file.with_suffix(f".broken-{uuid.uuid4().hex[:8]}")
            self.file.rename(aside)
            raise PlanError(f"the saved plan could not be read and was set aside as {aside.name}; plan anew") from exc

    def _save(self, todos: list[Todo]) -> None:
        draft = self.file.with_suffix(f".{os.getpid()}.draft")
        try:
            with draft.open("w", encoding="utf-8") as stream:
                json.dump([asdict(todo) for todo in todos], stream, ensure_ascii=False, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(self.file)
        finally:
            draft.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self.file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def found(todos: list[Todo], todo_ids: list[str]) -> list[Todo]:
    """Return the todos with these ids or beginnings of ids.

    Raises PlanError for one that is unknown or fits several.
    """
    chosen: list[Todo] = []
    for wanted in todo_ids:
        fitting = [todo for todo in todos if wanted.strip() and todo.id.startswith(wanted.strip())]
        if len(fitting) != 1:
            what = "no todo has" if not fitting else f"{len(fitting)} todos have"
            raise PlanError(f"{what} an id that begins with {wanted!r}")
        chosen += fitting
    if not chosen:
        raise PlanError("no ids were given")
    return chosen


def markdown(todos: list[Todo], message: str = "") -> str:
    done = sum(todo.completed for todo in todos)
    lines = [message, ""] if message else []
    lines += ["# Task Plan", "", f"Total: {len(todos)} | Pending: {len(todos) - done} | Completed: {done}", ""]
    lines += [f"- [{'x' if todo.completed else ' '}] {todo.title} ({todo.id[:SHOWN_ID]})" for todo in todos]
    return "\n".join(lines).rstrip()


def file_name(task_id: str) -> str:
    """Return an id as a part of a file name: without separators, and never too long. Clients choose the ids."""
    quoted = urllib.parse.quote(task_id, safe="").replace("~", "%7E")
    if len(quoted) <= LONGEST_NAME:
        return quoted
    # A short name never contains the sign, so this is not the name of another task.
    return f"{quoted[:NAME_START]}~{hashlib.sha256(quoted.encode()).hexdigest()[:32]}"


def default_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base, "toolhub", "todo_lists")


def main() -> None:
    parser = make_parser("task_planner", "Keeps the plan of a task as a list of todos.")
    parser.add_argument(
        "--data-dir", metavar="DIR", default=os.environ.get("TODO_DATA_DIR"), help="where lists are kept"
    )
    parser.add_argument("--task-id", metavar="ID", default=os.environ.get("TASK_ID"), help="whose list it is")
    serve(parser, create_server)
