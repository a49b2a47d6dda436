"""Logs for people and for other programs: a transcript, Markdown, and an archive.

All of it only reads. Whoever shows or hands out a session uses this: the command line, the web
app, a plugin.
"""

from dsh.state.log_export.archive import DescendantMissing, MediaUnavailable, archive_chunks
from dsh.state.log_export.jsonl import log_lines
from dsh.state.log_export.markdown import markdown_lines
from dsh.state.log_export.media import image_refs
from dsh.state.log_export.names import archive_name, safe_name
from dsh.state.log_export.transcript import Entry, transcript

__all__ = [
    "DescendantMissing",
    "Entry",
    "MediaUnavailable",
    "archive_chunks",
    "archive_name",
    "image_refs",
    "log_lines",
    "markdown_lines",
    "safe_name",
    "transcript",
]
