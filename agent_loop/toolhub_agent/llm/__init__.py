"""The loop's client of the model servers (design section 11).

`client` is what the loop uses; `fleet` (endpoints, slots, pools) stands on its own for whoever sends requests
differently. Importing this does not import the `openai` SDK; `open_llm` does.
"""

from toolhub_agent.llm.client import LlmClient, LlmStatistics, open_llm
from toolhub_agent.llm.request import LlmRequest
from toolhub_agent.llm.stream import LlmStream

__all__ = ["LlmClient", "LlmRequest", "LlmStatistics", "LlmStream", "open_llm"]
