"""What do toolhub's own servers save?"""
