"""Events of the credential store; their wire names are facts. None carries a secret."""

from __future__ import annotations

from dsh.base.values import value
from dsh.kernel.events import Emit


@value
class ReferenceUpdated:
    """The stored value of a reference was set, changed or taken out; ask for it anew."""

    ref: str


@value
class RecordUpdated:
    """A record was written, changed or deleted."""

    key: str


CREDENTIALS_REFERENCE_UPDATED = Emit[ReferenceUpdated](
    "credentials/reference-updated", errors="contain"
)
"""After a write, or an edit of the document, one each."""
CREDENTIALS_RECORD_UPDATED = Emit[RecordUpdated]("credentials/record-updated", errors="contain")
"""The same for records."""
