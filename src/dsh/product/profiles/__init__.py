"""``dsh profile``: list, make and delete profiles."""
