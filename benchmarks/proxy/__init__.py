"""What does the LLM proxy add to the time to the first byte?"""
