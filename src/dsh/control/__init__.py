"""Floor 6: what an agent may do."""
