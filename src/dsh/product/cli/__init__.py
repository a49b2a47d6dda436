"""The ``dsh`` command: its words, its modes and its exit codes."""
