"""Does a hub last a sweep?"""
