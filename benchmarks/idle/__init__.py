"""What does an idle session cost?"""
