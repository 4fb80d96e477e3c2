"""What the model reads: results in the form of the E2B SDK, and the sentences for failures.

Models were trained on these texts and log parsers search for them, so they stay as they were, even "after 3 attempts":
nothing is ever run twice. What the SDK has no words for is a line of its own after the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from toolhub_sandbox import CommandResult, Display, Execution, Failure, SandboxLimit, SandboxLost, SandboxNotFound

MAX_RESULT_LEN = 20_000
MAX_ERROR_LEN = 4_000
CUT = " [Result truncated due to length limit]"

# Ids that models invent instead of creating a sandbox.
INVALID_IDS = frozenset(
    "default sandbox1 sandbox some_id new_sandbox python create_sandbox sandbox123 temp sandbox-0 sandbox-1 sandbox_0 "
    "sandbox_1 new 0 auto default_sandbox none sandbox_12345 dummy sandbox_01".split()
)

# In the SDK's order. Other MIME types follow under their own names.
FORMATS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}


def format_execution(execution: Execution, sandbox_id: str | None = None) -> str:
    """Return `str()` of the SDK's Execution, cut, and a line for each thing that it cannot say.

    sandbox_id: None for a sandbox that ends with this execution and so has no state to report.
    """
    results = ", ".join(map(_result, execution.displays))
    logs = f"Logs(stdout: {_stream(execution.stdout)}, stderr: {_stream(execution.stderr)})"
    text = f"Execution(Results: [{results}], Logs: {logs}, Error: {_error(execution.error)})"
    return "\n".join([cut(text), *_notes(execution, sandbox_id)])


def format_command(result: CommandResult) -> str:
    """Return `str()` of the SDK's CommandResult, cut. A failed command is a result too, with all its output."""
    error = f"exit status {result.exit_code}" if result.exit_code else ""
    if result.timed_out:
        error = "timed out; the command was ended with everything it had started"
    text = (
        f"CommandResult(stderr={result.stderr!r}, stdout={result.stdout!r}, "
        f"exit_code={result.exit_code!r}, error={error!r})"
    )
    return "\n".join([cut(text), *_dropped(result.dropped_bytes)])


def cut(text: str) -> str:
    return text if len(text) <= MAX_RESULT_LEN else text[:MAX_RESULT_LEN] + CUT


def error_details(exc: Exception) -> str:
    """Return the text of an exception, cut; for a limit also its name."""
    text = str(exc)
    if isinstance(exc, SandboxLimit) and exc.limit not in text:
        text = f"{exc.limit}: {text}"
    return text[:MAX_ERROR_LEN]


def not_reached(sandbox_id: str, exc: Exception) -> str | None:
    """Return the answer if there is no such sandbox (any more); None if `exc` is about something else."""
    connect = (
        f"[ERROR]: Failed to connect to sandbox {sandbox_id}. "
        "Make sure the sandbox is created and the sandbox_id is correct."
    )
    if isinstance(exc, SandboxNotFound):
        return invalid_id(sandbox_id) if sandbox_id in INVALID_IDS else connect
    if isinstance(exc, SandboxLost):
        return (
            f"{connect}\nThe sandbox is gone with its variables and files ({error_details(exc)}). What was running may "
            "have done its work and was not repeated. Create a new sandbox with create_sandbox to go on."
        )
    return None


def invalid_id(sandbox_id: str) -> str:
    return (
        f"[ERROR]: '{sandbox_id}' is not a valid sandbox_id. "
        "Please create a real sandbox first using the create_sandbox tool."
    )


def not_created(exc: Exception) -> str:
    return f"[ERROR]: Failed to create sandbox after 5 attempts: {error_details(exc)}, please retry later."


def command_failed(exc: Exception) -> str:
    kind = type(exc).__name__
    return f"[ERROR]: Failed to run command after 3 attempts.\n\nException type: {kind}\nDetails: {error_details(exc)}"


def code_failed(sandbox_id: str, exc: Exception) -> str:
    kind = type(exc).__name__
    return (
        f"[ERROR]: Failed to run code in sandbox {sandbox_id} after 3 attempts. "
        f"Exception type: {kind}, Details: {error_details(exc)}"
    )


def stateless_failed(exc: Exception) -> str:
    kind = type(exc).__name__
    return f"[ERROR]: Failed to run code in stateless mode. Exception type: {kind}, Details: {error_details(exc)}"


def no_folder(folder: str, sandbox_id: str, result: CommandResult) -> str:
    told = format_command(result)[:MAX_ERROR_LEN]
    return f"[ERROR]: Failed to create directory {folder} in sandbox {sandbox_id}: {told}"


def _result(display: Display) -> str:
    """One Result. The service takes the quotes off a string's repr before the SDK sees it."""
    text = display.text or ""
    if text[:1] in ("'", '"') and text[-1:] == text[:1]:
        text = text[1:-1]
    return f"Result({text})" if text else f"Result(Formats: {', '.join(_formats(display.data))})"


def _formats(data: Mapping[str, str]) -> Iterator[str]:
    yield from (name for mime, name in FORMATS.items() if name != "text" and data.get(mime))
    yield from (mime for mime in data if mime not in FORMATS)


def _stream(text: str) -> list[str]:
    return [text] if text else []


def _error(error: Failure | None) -> str:
    if error is None:
        return "None"
    return f"ExecutionError(name={error.name!r}, value={error.value!r}, traceback={error.traceback!r})"


def _notes(execution: Execution, sandbox_id: str | None) -> Iterator[str]:
    yield from _dropped(execution.dropped_bytes)
    if sandbox_id is None:
        return
    if execution.state == "lost":
        yield (
            f"[WARNING]: The Python interpreter of sandbox {sandbox_id} had to be restarted: all variables, imports "
            "and running threads are lost; files are still there. Import and define again what you need."
        )
    elif execution.timed_out:
        yield "[INFO]: The code ran too long and was interrupted; variables, imports and files are kept."


def _dropped(count: int) -> Iterator[str]:
    if count:
        yield f"[INFO]: {count} bytes of output were dropped; write long output to a file instead."
