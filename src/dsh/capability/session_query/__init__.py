"""Tools with which a model looks into past sessions of its workspace."""
