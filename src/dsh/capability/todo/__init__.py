"""The list of what an agent means to do, which it keeps itself and people watch."""
