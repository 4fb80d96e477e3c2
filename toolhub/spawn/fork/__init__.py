"""`spawn: fork`: a server process is forked from an interpreter that has its libraries loaded."""
