"""How many idle tasks does a machine hold?"""
