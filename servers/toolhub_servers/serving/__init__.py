"""What every server is built with: its context in the hub, its tools, its options, its command line."""
