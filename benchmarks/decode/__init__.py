"""What does speculative decoding give an agent, and does it lose tool calls?"""
