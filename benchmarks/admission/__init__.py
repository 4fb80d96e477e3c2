"""Does admission by the cache's tokens finish a sweep sooner?"""
