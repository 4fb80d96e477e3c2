"""What bounds the use of a scarce thing: calls at once, starts at once, processes, memory, descriptors."""
