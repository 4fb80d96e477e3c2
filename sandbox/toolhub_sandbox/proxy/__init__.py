"""The HTTP proxy through which a sandbox without a network reaches the hosts that its profile lists."""
