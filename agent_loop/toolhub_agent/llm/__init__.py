"""The client of the model servers.

The agent loop uses `client`. `endpoint_pool` (routing, slots, connections) works without it, for code that sends
requests itself, as the LLM proxy does.
"""

from toolhub_agent.llm.client import LlmClient, LlmRequest, LlmStatistics, LlmStream, open_llm

__all__ = ["LlmClient", "LlmRequest", "LlmStatistics", "LlmStream", "open_llm"]
