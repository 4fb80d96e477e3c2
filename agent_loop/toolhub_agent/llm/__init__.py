"""The loop's client of the model servers (design section 11).

`client` is what the loop uses; `fleet` (endpoints, slots, pools) stands on its own for whoever sends requests
differently. Importing this does not import the `openai` SDK; `open_llm` does.
"""

from toolhub_agent.llm.client import LlmClient, LlmRequest, LlmStatistics, LlmStream, open_llm

__all__ = ["LlmClient", "LlmRequest", "LlmStatistics", "LlmStream", "open_llm"]
