"""`spawn: fork`: a server's process is forked from an interpreter that has loaded its libraries."""
