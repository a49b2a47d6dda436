"""``dsh sessions``: what is stored, seen without booting anything."""
