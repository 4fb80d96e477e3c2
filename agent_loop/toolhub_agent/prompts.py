"""Every text for the model that the loop writes itself. Changing a word here changes what trained models see.

The system prompt has the structure that MiroFlow's models were trained with: headings, markers and their order,
schemas as Python prints a dict. For the same catalog, date and objective it is the same to the byte, so that the
server finds its KV cache again.
"""

from __future__ import annotations

import datetime

from toolhub_agent.tool_calls.catalog import ToolCatalog, ToolEntry
from toolhub_agent.types import Task

# --- The system prompt ------------------------------------------------------------------------------------------------
# The system prompt: which tools there are, how they are called, what the agent is for.
#
# The structure is the one MiroFlow's models were trained with: headings, markers and their order, schemas as Python
# prints a dict. For the same catalog, date and objective it is the same to the byte, so that its KV cache is found
# again.

_INTRO = (
    "You can use tools to answer the user's question and to carry out the task. {how_many} The result of a tool comes "
    "back in the user's next message. Work step by step: let every use of a tool follow from what the ones before it "
    "found out.\n\nToday is: {date}\n"
)
_ONE = "Use only one tool per message."
_SEVERAL = (
    "Use several tools in one message whenever none of them needs another one's result: they run at the same time. A "
    "tool that needs a result waits for the next message."
)
_XML_FORMAT = """
# Tool-Use Formatting Instructions

A tool is used by writing XML-style tags. The names of the server and of the tool and the tool's arguments each have a \
tag of their own, and all of them stand inside one <use_mcp_tool> tag.

Each tool belongs to a server, and its arguments must be a JSON object that fits the tool's input schema.

Parameters:
- server_name: (required) the server that has the tool
- tool_name: (required) the tool
- arguments: (required) a JSON object with the tool's input; quotes inside strings are escaped

Usage:
<use_mcp_tool>
<server_name>server name here</server_name>
<tool_name>tool name here</tool_name>
<arguments>
{
  "param1": "value1",
  "param2": "value2 \\"with escaped quotes\\""
}
</arguments>
</use_mcp_tool>

Important notes:
- The use of a tool stands at the **end** of the message, at the **top level**, and inside no other tag.
- Keep exactly to this format; a tag that is missing or misplaced makes the whole use void.

Names and arguments are passed on as they are written. The servers and tools that can be used are these:
"""
_XML_END = "- The use of a tool stands at the **end** of the message, at the **top level**, and inside no other tag.\n"
_XML_SEVERAL_END = (
    "- The uses of tools stand at the **end** of the message, one after the other, at the **top level**, each in a "
    "<use_mcp_tool> tag of its own and inside no other tag.\n"
)
_GENERAL_OBJECTIVE = """
# General Objective

You reach the goal in steps, one after the other and in good order:

1. Read the task and set yourself clear goals that can be reached; put them into a sensible order.
2. Work through the goals in that order, using a tool whenever one helps.
3. Before using a tool think about which one fits best and whether the task tells all of its required arguments or \
they follow from what is known. Do not make up a value.
4. When all the goals are reached, give the result to the user.
"""


def system_prompt(
    catalog: ToolCatalog,
    *,
    date: datetime.date,
    objective: str,
    protocol: str = "xml",
    parallel: bool = False,
) -> str:
    """Return the whole system prompt.

    date: keep it for the whole conversation, also past midnight, or the cached prefix is lost. objective: what this
    agent is for. protocol: with `native` the tools go into the request instead. parallel: ask for several calls per
    message where they are independent; models were trained with one.
    """
    parts = [_INTRO.format(how_many=_SEVERAL if parallel else _ONE, date=date.isoformat())]
    if protocol == "xml":
        parts.append(_XML_FORMAT.replace(_XML_END, _XML_SEVERAL_END) if parallel else _XML_FORMAT)
        parts += [_server(name, entries) for name, entries in catalog.servers.items()]
    parts += [_GENERAL_OBJECTIVE, f"\n# Agent Specific Objective\n\n{objective.strip()}\n"]
    return "".join(parts)


def _server(name: str, entries: tuple[ToolEntry, ...]) -> str:
    return f"\n## Server name: {name}\n" + "".join(map(_tool, entries))


def _tool(entry: ToolEntry) -> str:
    return f"### Tool name: {entry.name}\nDescription: {entry.description}\nInput JSON schema: {entry.schema}\n"


# --- Messages ---------------------------------------------------------------------------------------------------------
# What the loop says to the model beside the system prompt. Changing a word here changes what trained models see.

_BOX = (
    "Give the final answer itself, as short as the question allows, inside \\boxed{}: a number, a name, a date or a "
    "list, without explanation in the box."
)


def task_message(task: Task, *, boxed: bool) -> str:
    """The first user message: the question, its files, and in which form the answer is wanted."""
    parts = [task.question]
    if task.files:
        parts.append("Files that belong to the question:\n" + "\n".join(f"- {path}" for path in task.files))
    if boxed:
        parts.append(_BOX)
    return "\n\n".join(parts)


def final_answer_request(task: Task, *, boxed: bool) -> str:
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


def report_request(subtask: str) -> str:
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
