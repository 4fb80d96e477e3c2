"""An MCP server that gives a model Linux sandboxes for commands, Python code and files: MiroFlow's `tool-python`.

Tools, parameters and result texts are those that the models know. What differs, on purpose:

- Code and commands run once. The texts still say "after 3 attempts", but nothing is ever repeated.
- A command that exits with a non-zero status is a result like any other, with its stdout, stderr and exit code.
- Code that runs too long is interrupted and keeps its state. If it ignores that, the state is lost. The result says so.
- A sandbox lives as long as the task. The `timeout` of `create_sandbox` is accepted and has no effect. If a sandbox is
  gone nevertheless, the answer is that of a failed connection, with the reason.
- Files of the host are read only below `local_dirs` and written only to `tmpfiles` below `logs_dir`.
- A download from the internet needs a profile with network (`sandbox.profiles.<name>.network`) and says so.
"""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver.tools import Tool
from toolhub_sandbox import HOME, CommandResult, FileError, Sandbox, SandboxError

from toolhub.config import SandboxSettings
from toolhub.extensions import BuiltinContext
from toolhub_servers.python import texts as text
from toolhub_servers.python.download import check_url, fetch, is_cut_off, target_of
from toolhub_servers.python.sandboxes import TaskSandboxes, add_sandbox_arguments, read_settings
from toolhub_servers.serving.local_files import OutputDir, ReadableFolders, read_pieces, saved_name
from toolhub_servers.serving.program import make_parser, serve
from toolhub_servers.serving.server import MaybeText, make_server, make_tool

NO_LOGS_DIR = "[ERROR]: LOGS_DIR environment variable is not set. Cannot determine where to save the file."


def create_server(
    *,
    context: BuiltinContext | None = None,
    profile: str | None = None,
    local_dirs: Sequence[str] = (),
    logs_dir: str | None = None,
    settings: SandboxSettings | None = None,
) -> MCPServer:
    """Return the server. Raises ValueError for a folder or a profile that does not exist.

    context: what the hub gives the server; None: the server opens its own sandboxes according to `settings`.
    profile: the kind of sandboxes; None: the default of the config.
    local_dirs: folders of the host whose files may be uploaded; none: no uploads.
    logs_dir: files from sandboxes are saved to its folder `tmpfiles`; None: no downloads to the host.
    """
    sandboxes = TaskSandboxes(context, profile, settings)
    output_dir = OutputDir(logs_dir) if logs_dir else None
    tools = PythonTools(sandboxes, readable=ReadableFolders(local_dirs), output_dir=output_dir)
    return make_server("toolhub-python", tools=tools.mcp_tools(), lifespan=sandboxes.lifespan)


class PythonTools:
    """The six tools. Every expected failure is a text, as models know it, and not an error."""

    def __init__(self, sandboxes: TaskSandboxes, *, readable: ReadableFolders, output_dir: OutputDir | None) -> None:
        self._sandboxes = sandboxes
        self._readable = readable
        self._output_dir = output_dir

    def mcp_tools(self) -> list[Tool]:
        return [
            make_tool(self.create_sandbox, is_titled=False),
            make_tool(self.run_command, is_titled=False),
            # Models are told to give a sandbox_id. If one gives none, its code runs nevertheless.
            make_tool(self.run_python_code, is_titled=False, needed=("sandbox_id",)),
            make_tool(self.upload_file_from_local_to_sandbox, is_titled=False),
            make_tool(self.download_file_from_internet_to_sandbox, is_titled=False),
            make_tool(self.download_file_from_sandbox_to_local, is_titled=False),
        ]

    async def create_sandbox(self, timeout: int = 600) -> str:
        """Create a Linux sandbox in which commands and Python code run safely, and get its `sandbox_id`.

        The other tools need this id, and it cannot be made up. Wait for the answer before you call one of them: never
        call `create_sandbox` and a tool that needs its id in the same message. Variables and files stay in a sandbox
        from call to call, so create one and go on using it.

        Args:
            timeout: Seconds for which the sandbox is wanted, at most 600. It does not end earlier than your task.

        Returns:
            A text with the `sandbox_id` of the new sandbox, to be given to the other tools.
        """
        try:
            sandbox = await self._sandboxes.create()
        except SandboxError as exc:
            return text.not_created(exc)
        return f"Sandbox created with sandbox_id: {sandbox.id}"

    async def run_command(self, command: str, sandbox_id: str) -> str:
        """Run a shell command in a sandbox. Meant for light work; it is stopped if it takes too long.

        Args:
            command: The command, as for bash.
            sandbox_id: The id of a sandbox that `create_sandbox` returned. Use one that you have rather than a new one.

        Returns:
            A text such as CommandResult(stderr=..., stdout=..., exit_code=..., error=...). Long output is cut.
        """
        try:
            return text.format_command(await self._sandboxes.get(sandbox_id).run_command(command))
        except (SandboxError, ValueError) as exc:  # ValueError: a null character in the command
            return text.not_reached(sandbox_id, exc) or text.command_failed(exc)

    async def run_python_code(self, code_block: str, sandbox_id: MaybeText = None) -> str:
        """Run Python code in a sandbox. Meant for short code; it is interrupted if it takes too long.

        What the code defines is still there in the next call with the same sandbox.

        Args:
            code_block: The Python code. Print what you want to see.
            sandbox_id: The id of a sandbox that `create_sandbox` returned; create one first, and use one that you have
                rather than a new one.

        Returns:
            A text such as Execution(Results: [...], Logs: ..., Error: ...) with results, output and error. Long output
            is cut.
        """
        if not sandbox_id or sandbox_id in text.INVALID_IDS:
            try:
                return text.format_execution(await self._sandboxes.run_once(code_block))
            except SandboxError as exc:
                return text.stateless_failed(exc)
        try:
            execution = await self._sandboxes.get(sandbox_id).exec_code(code_block)
        except SandboxError as exc:
            return text.not_reached(sandbox_id, exc) or text.code_failed(sandbox_id, exc)
        return text.format_execution(execution, sandbox_id)

    async def upload_file_from_local_to_sandbox(
        self, sandbox_id: str, local_file_path: str, sandbox_file_path: str = HOME
    ) -> str:
        """Copy a local file into a sandbox, where code and commands can use it.

        Args:
            sandbox_id: The id of a sandbox that `create_sandbox` returned. Use one that you have rather than a new one.
            local_file_path: The path of the local file.
            sandbox_file_path: The directory in the sandbox to put it in. Default is `/home/user`.

        Returns:
            A text with the path of the file in the sandbox.
        """
        failed = f"[ERROR]: Failed to upload file {local_file_path} to sandbox {sandbox_id}: "
        try:
            sandbox = self._sandboxes.get(sandbox_id)
            with await to_thread.run_sync(self._readable.open, local_file_path) as stream:
                folder = posixpath.normpath(posixpath.join(HOME, sandbox_file_path))
                if (made := await _make_folder(sandbox, folder)).exit_code:
                    return text.no_folder(folder, sandbox_id, made)
                target = posixpath.join(folder, posixpath.basename(local_file_path))
                async with aclosing(read_pieces(stream)) as pieces:
                    await sandbox.put(target, pieces)
        except FileNotFoundError:
            return f"[ERROR]: Local file does not exist: {local_file_path}"
        except IsADirectoryError:
            return f"[ERROR]: Path is not a file: {local_file_path}"
        except (SandboxError, OSError, ValueError) as exc:
            return text.not_reached(sandbox_id, exc) or failed + text.error_details(exc)
        return f"File uploaded to {target}"

    async def download_file_from_internet_to_sandbox(
        self, sandbox_id: str, url: str, sandbox_file_path: str = HOME
    ) -> str:
        """Download a file from the internet into a sandbox. Avoid large files and slow sites.

        Args:
            sandbox_id: The id of a sandbox that `create_sandbox` returned. Use one that you have rather than a new one.
            url: The http or https URL of the file.
            sandbox_file_path: The directory in the sandbox to put it in, or a path with an extension to save it as.
                Default is `/home/user`.

        Returns:
            A text with the path of the file in the sandbox.
        """
        failed = f"[ERROR]: Failed to download file from {url}"
        try:
            sandbox = self._sandboxes.get(sandbox_id)
            check_url(url)
            target = target_of(url, sandbox_file_path)
            folder = posixpath.dirname(target)
            if (made := await _make_folder(sandbox, folder)).exit_code:
                return text.no_folder(folder, sandbox_id, made)
        except (SandboxError, ValueError) as exc:
            return text.not_reached(sandbox_id, exc) or f"{failed}: {text.error_details(exc)}"
        try:
            fetched = await fetch(sandbox, url, target)
            if fetched.exit_code == 0:
                return f"File downloaded to {shlex.quote(target)}"
            if await is_cut_off(sandbox, url):
                key = f"sandbox.profiles.{sandbox.profile}.network"
                return f"{failed}: this sandbox has no network. It gets one by the config key {key}."
        except SandboxError as exc:
            return text.not_reached(sandbox_id, exc) or f"{failed} to {target}. Exception: {text.error_details(exc)}"
        told = "timed out" if fetched.timed_out else f"stderr: {fetched.stderr}"[: text.MAX_ERROR_LEN]
        return f"{failed} to {target} after 3 attempts.\n\nexit_code: {fetched.exit_code}\n\nDetails: {told}"

    async def download_file_from_sandbox_to_local(
        self, sandbox_id: str, sandbox_file_path: str, local_filename: MaybeText = None
    ) -> str:
        """Copy a file out of a sandbox. Tools of other servers cannot see files in a sandbox, only local ones and URLs.

        Args:
            sandbox_id: The id of a sandbox that `create_sandbox` returned.
            sandbox_file_path: The path of the file in the sandbox.
            local_filename: A name for the local copy. Default is the name that it has in the sandbox.

        Returns:
            A text with the path of the local copy.
        """
        refused = f"[ERROR]: Cannot download '{sandbox_file_path}' from sandbox {sandbox_id}: "
        try:
            sandbox = self._sandboxes.get(sandbox_id)
            if self._output_dir is None:
                return NO_LOGS_DIR
            name = (local_filename or "").strip() or posixpath.basename(sandbox_file_path)
            async with aclosing(_read(sandbox, sandbox_file_path)) as pieces:
                saved = await self._output_dir.save(saved_name(sandbox_id, name), pieces)
        except FileError as exc:
            if exc.problem == "directory":
                return f"{refused}path is a directory, not a file."
            if exc.problem == "missing":
                return f"{refused}file does not exist."
            failed = f"[ERROR]: Failed to read file '{sandbox_file_path}' from sandbox {sandbox_id}: "
            return failed + text.error_details(exc)
        except (SandboxError, OSError) as exc:
            failed = f"[ERROR]: Failed to download file '{sandbox_file_path}' from sandbox {sandbox_id}: "
            return text.not_reached(sandbox_id, exc) or failed + text.error_details(exc)
        return f"File downloaded successfully to: {saved}"


async def _make_folder(sandbox: Sandbox, folder: str) -> CommandResult:
    if folder in (HOME, "/"):
        return CommandResult("", "", 0)
    return await sandbox.run_command(f"mkdir -p -- {shlex.quote(folder)}")


async def _read(sandbox: Sandbox, path: str) -> AsyncGenerator[bytes, None]:
    """The pieces of a file. They can be closed, and awaited, before all of them are taken."""
    pieces = sandbox.read(path)
    try:
        async for piece in pieces:
            yield piece
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


def create_from_options(config: str | None, **options: Any) -> MCPServer:
    """`create_server` with the sandboxes of a config file. Raises ValueError also for an unusable config."""
    return create_server(settings=read_settings(config), **options)


def main() -> None:
    parser = make_parser("python", "Runs commands and Python code in sandboxes, and moves files in and out.")
    add_sandbox_arguments(parser)
    parser.add_argument(
        "--local-dir",
        metavar="DIR",
        dest="local_dirs",
        action="append",
        default=[],
        help="a folder that files may be uploaded from; can be given several times",
    )
    parser.add_argument(
        "--logs-dir",
        metavar="DIR",
        default=os.environ.get("LOGS_DIR"),
        help="files from sandboxes are saved to its folder 'tmpfiles'",
    )
    serve(parser, create_from_options)
