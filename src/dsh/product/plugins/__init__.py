"""``dsh plugin``: the packages of one profile, kept in a folder of its own through pip."""
