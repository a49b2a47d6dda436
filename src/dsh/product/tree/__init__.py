"""``dsh tree``: the tree of a profile as it comes up here, as text, JSON or a picture."""
