"""Running tasks from the command line: one with a live view, or a sweep of many that can be interrupted."""
