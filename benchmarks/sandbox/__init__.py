"""What does a place to run code cost?"""
