"""Starts a model's tool calls while it still writes: a component of its own, for any agent and any LLM stream.

A call starts the moment its arguments close in the stream, so that a turn takes max(stream, tools) instead of their
sum; results come in call order or as they complete. With the `openai` SDK:

    catalog = ToolCatalog.of(await tools.get_all_tool_definitions())

    async def execute(call: ToolCall) -> ToolOutcome:
        answer = await tools.execute_tool_call(call.server, call.tool, call.arguments)
        return ToolOutcome(call, answer.get("result") or answer.get("error", ""), "error" in answer)

    async with Dispatcher(execute, catalog, protocol="native") as turn:
        async for chunk in await client.chat.completions.create(..., tools=catalog.native_tools(), stream=True):
            turn.feed(chunk)
        called = await turn.finish()
        messages.append({"role": "assistant", "tool_calls": list(called.native)})
        async for outcome in turn.results():
            messages.append({"role": "tool", "tool_call_id": outcome.call.id, "content": outcome.text})

What may go wrong early, and what is done about it:
- only tools that declare themselves read-only (or are named in `read_only`) start before the turn's end, unless
  `eager="all"`; then a native call that may change something still waits until a later call or the end seals it;
- a call that turns out to be none (more text after its object, or all of it was thinking) is cancelled and its outcome
  dropped; a call that was begun but never completed makes the turn void, and everything that was started is cancelled.
  `tolerant=True` runs the complete calls of such a turn nevertheless;
- calls of one turn to one server take effect in their order: whatever may change something waits for the calls before
  it that may, too, and a read waits for the changes before it. Everything else runs together.
"""

from toolhub_agent.tool_calls.dispatcher import CallEvent, CallFinished, CallStarted, Dispatcher, Execute, TurnCalls

__all__ = ["CallEvent", "CallFinished", "CallStarted", "Dispatcher", "Execute", "TurnCalls"]
