"""What the loop says to the model beside the system prompt. Changing a word here changes what trained models see."""

from __future__ import annotations

from toolhub_agent.loop.task import Task

_BOX = (
    "Give the final answer itself, as short as the question allows, inside \\boxed{}: a number, a name, a date or a "
    "list, without explanation in the box."
)


def question(task: Task, *, boxed: bool) -> str:
    """The first user message: the question, its files, and in which form the answer is wanted."""
    parts = [task.question]
    if task.files:
        parts.append("Files that belong to the question:\n" + "\n".join(f"- {path}" for path in task.files))
    if boxed:
        parts.append(_BOX)
    return "\n\n".join(parts)


def final_answer(task: Task, *, boxed: bool) -> str:
    """Asks for the answer when there will be no more tool calls."""
    parts = [
        "This is the end of the work on the task: do not call any tool any more. Say what was found out, with the "
        "facts and where they come from, and then answer. If something could not be settled, use the best-supported "
        "finding instead of giving up.",
        f"The task was:\n{task.question}",
    ]
    if boxed:
        parts.append(_BOX)
    return "\n\n".join(parts)


def report(subtask: str) -> str:
    """Asks a sub-agent for what it found."""
    return (
        "This is the end of the work on the subtask: do not call any tool any more. Write the report for the agent "
        "that asked you: every finding that bears on the subtask, with its source, and what remains uncertain.\n\n"
        f"The subtask was:\n{subtask}"
    )


MAIN_OBJECTIVE = (
    "You answer a question that needs research. Plan, search, read the sources themselves and not only what a search "
    "shows of them, compute where numbers are asked for, and check what you found against a second source before you "
    "rely on it. When the answer is certain, or nothing more can be found out, give it without calling another tool."
)

SUB_AGENT_OBJECTIVE = (
    "Another agent has given you a subtask. Find out what it asks for, by searching and by reading the sources "
    "themselves, and keep to the subtask. Do not guess: what could not be found is worth telling, too. When you have "
    "finished, say so without calling another tool; you will then be asked for your report."
)
