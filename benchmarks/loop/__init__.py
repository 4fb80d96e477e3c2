"""What does the agent loop gain beside a plain one?"""
