"""Documents that people and programs both write: read cheaply, changed in place, locked.

A library of the state floor: settings and credentials keep their files by it.
"""

from dsh.state.documents.errors import DocumentError, DocumentUnpatchable, OpenToOthers
from dsh.state.documents.file import DocumentFile, Draft

__all__ = [
    "DocumentError",
    "DocumentFile",
    "DocumentUnpatchable",
    "Draft",
    "OpenToOthers",
]
