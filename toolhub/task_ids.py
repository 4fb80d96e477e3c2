"""The rule for task ids. Clients choose them, so they are checked before they are used in a path or an argument."""

from __future__ import annotations

import re

from toolhub.errors import ConfigError

# Such a value cannot leave a folder, end a line or a string, or look like an option.
_TASK_VALUE = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]{0,127}")
TASK_VALUE_RULE = "use 1 to 128 letters (a to z), digits and . _ : - and begin with neither . nor -"
# An error message shows at most this much of an id.
_MESSAGE_CHARS = 64


def is_task_value(value: str) -> bool:
    """Whether the value follows TASK_VALUE_RULE. It holds for task ids and for values of `${task.<label>}`."""
    return _TASK_VALUE.fullmatch(value) is not None


def check_task_id(task_id: str) -> str:
    """Return the id. Raises ConfigError if it is not allowed."""
    if not is_task_value(task_id):
        raise ConfigError(f"the task id {ascii(task_id[:_MESSAGE_CHARS])} is not allowed: {TASK_VALUE_RULE}")
    return task_id
