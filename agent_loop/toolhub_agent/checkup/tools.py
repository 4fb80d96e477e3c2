"""Do native tool calls work? The XML protocol needs nothing of the server."""

from __future__ import annotations

from toolhub_agent.checkup.finding import Finding
from toolhub_agent.checkup.server import Answer, ModelServer, Unanswered
from toolhub_agent.types import Json, Message

LOOK_UP: Json = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_ASK: list[Message] = [{"role": "user", "content": "Call the tool look_up with the word heron. Say nothing else."}]
# A model that thinks first needs some; it is cut off rather than waited for.
_TOKENS = 400
_PARSER = {
    "vllm": "start vLLM with --enable-auto-tool-choice and the --tool-call-parser of your model",
    "sglang": "start SGLang with the --tool-call-parser of your model",
    "dynamo": "start the workers with the --dyn-tool-call-parser of your model",
    "llamacpp": "start llama-server with --jinja and a template that has tools",
}


async def check_tools(server: ModelServer) -> list[Finding]:
    """Raises Unanswered if the server is gone; a refusal is a finding."""
    advice = _PARSER.get(server.adapter.name, "see how your server parses tool calls")
    advice += "; or keep `agent: protocol: xml`, which needs none"
    try:
        answer = await server.whole(_ASK, tools=[LOOK_UP], tool_choice="auto", max_tokens=_TOKENS)
    except Unanswered as exc:
        if exc.status is None or exc.status >= 500:
            raise
        return [Finding("native tool calls", "weaker", str(exc), advice)]
    return [_judge(answer, advice)]


def _judge(answer: Answer, advice: str) -> Finding:
    calls = answer.message.get("tool_calls") or []
    names = [(call.get("function") or {}).get("name") for call in calls if isinstance(call, dict)]
    if names == ["look_up"]:
        return Finding("native tool calls", "ok", "the model called a tool when asked to")
    content = answer.message.get("content") or ""
    if "look_up" in content and ("tool_call" in content or '"name"' in content):
        return Finding("native tool calls", "weaker", "a call came back as text: no parser, or the wrong one", advice)
    return Finding("native tool calls", "note", "accepted, but this model did not call a tool when asked to")
