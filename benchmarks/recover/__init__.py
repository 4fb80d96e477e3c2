"""What does a crash cost?"""
