"""How long does a whole research task take?"""
