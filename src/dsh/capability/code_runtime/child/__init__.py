"""The program that a run's interpreter executes: it runs one program of the model's, and ends.

It is started by path (``python -I -S <this folder>/__main__.py <descriptor>``) and knows only the
standard library. What it sends is checked by dsh like anything else that comes from outside,
because the program that it runs can do whatever it likes here.

Importing ``typing`` and ``pathlib`` would take a third of the time that an interpreter needs to be
ready, so these modules do without them when they run.
"""
