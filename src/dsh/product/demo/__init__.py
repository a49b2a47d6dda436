"""``dsh demo``: the main job without a key."""
