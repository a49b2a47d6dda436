"""Floor 4: what happened. The session log, what reads it, and where it is kept."""
