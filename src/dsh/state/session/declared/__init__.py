"""Event types of the shared format whose own rooms do not exist here yet.

A log may hold them, and whoever reads it finds their names and shapes in the modules of this
package, one an area. A room that is built takes its declarations along into its ``events.py``;
each type is declared once in the whole program.
"""
