"""Floor 7: what an agent gets to see beyond its conversation."""
