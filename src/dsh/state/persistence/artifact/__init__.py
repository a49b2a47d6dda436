"""The file of one session: where it lies, how it is read, grown and repaired.

Nothing here knows of plugins or of the event loop; every function blocks.
"""
