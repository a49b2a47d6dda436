"""Floor 0: the one of each primitive. Standard library only."""
