"""What does one call cost?"""
