"""``dsh completion``: scripts for shells, and the words that these ask for."""
