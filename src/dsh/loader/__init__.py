"""From configuration to a running tree: rows, patches, bundles, profiles, expressions, boot.

The parts that compose and dump a profile import nothing of the kernel; a launcher that only
prints pays for nothing else.
"""
