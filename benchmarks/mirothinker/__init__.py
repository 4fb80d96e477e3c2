"""MiroThinker: a whole run of the agent whose services answer at once."""
