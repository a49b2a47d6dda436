"""The command ``dsh credentials``, and what the launcher reads of the home's documents."""
