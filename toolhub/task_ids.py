"""What a task may be called. Clients choose names, so they are checked before they stand in a path or an argument."""

from __future__ import annotations

import re

from toolhub.errors import ConfigError

# Such a value can neither leave a folder, nor end a line or a string, nor be read as an option.
_TASK_VALUE = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]{0,127}")
TASK_VALUE_RULE = "use 1 to 128 letters (a to z), digits and . _ : - and begin with neither . nor -"
# Of an id that is not allowed, in the message that says so.
_SHOWN_CHARS = 64


def is_task_value(value: str) -> bool:
    """Whether a task's id may be this, and what stands for `${task.<label>}`; see TASK_VALUE_RULE."""
    return _TASK_VALUE.fullmatch(value) is not None


def check_task_id(task_id: str) -> str:
    """Return the id. Raises ConfigError for one that is not allowed."""
    if not is_task_value(task_id):
        shown = ascii(task_id[:_SHOWN_CHARS])
        raise ConfigError(f"the task id {shown} is not allowed: {TASK_VALUE_RULE}")
    return task_id
