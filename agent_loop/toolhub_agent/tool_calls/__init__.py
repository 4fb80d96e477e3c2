"""Starts a model's tool calls while the model still writes. It works with any agent and any LLM stream.

A call starts when its arguments are complete in the stream, so a turn takes max(stream, tools) instead of their sum.
Results come in call order or as they complete. With the `openai` SDK:

    catalog = ToolCatalog.of(await tools.get_all_tool_definitions())

    async def execute(call: ToolCall) -> str:
        answer = await tools.execute_tool_call(call.server, call.tool, call.arguments)
        if "error" in answer:
            raise ToolFailed(answer["error"])
        return answer["result"]

    async with Dispatcher(execute, catalog, protocol="native") as turn:
        async for chunk in await client.chat.completions.create(..., tools=catalog.native_tools(), stream=True):
            turn.feed(chunk)
        called = await turn.finish()
        messages.append({"role": "assistant", "tool_calls": list(called.native)})
        async for outcome in turn.results():
            messages.append({"role": "tool", "tool_call_id": outcome.call.id, "content": outcome.text})

Early starts have these rules:
- Only tools that declare themselves read-only (or are named in `read_only`) start before the turn's end. With
  `eager="all"` other tools do too, but a native call that may change something waits until a later call or the end of
  the stream seals it.
- A call may turn out not to be one: more text follows its object, or all of it was thinking. Then it is cancelled and
  its outcome dropped.
- If a call was begun and never completed, the turn is void: every started call is cancelled. With `tolerant=True` the
  complete calls of such a turn run nevertheless.
- Calls of one turn to one server take effect in their order. A call that may change something waits for the earlier
  calls that may, too. A read waits for the earlier changes. All other calls run concurrently.
"""

from toolhub_agent.tool_calls.dispatcher import (
    CallEvent,
    CallFinished,
    CallStarted,
    Dispatcher,
    Execute,
    Prefetch,
    TurnCalls,
)

__all__ = ["CallEvent", "CallFinished", "CallStarted", "Dispatcher", "Execute", "Prefetch", "TurnCalls"]
