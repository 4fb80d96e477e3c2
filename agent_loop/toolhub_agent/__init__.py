"""The agent loop, its LLM client and KV hints (design section 11). Not part of this release."""
