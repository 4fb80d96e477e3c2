"""How many calls a second?"""
