"""How long until many tasks can work?"""
