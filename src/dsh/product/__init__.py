"""What people and programs touch: command lines, apps and the shipped bundles."""
