"""A sweep begins: how long until all its tasks can work?"""
