"""``dsh doctor``: what keeps dsh or a profile from running, and what to do about it."""
