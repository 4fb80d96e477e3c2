"""The HTTP client of the servers: pooled, rate limited, bounded, cached, and closed to private networks.

Worker processes import single modules of this package, so nothing is imported here.
"""
