"""Credentials: secrets by reference; configuration names them, and never holds them."""

from dsh.state.credentials.events import (
    CREDENTIALS_RECORD_UPDATED,
    CREDENTIALS_REFERENCE_UPDATED,
    RecordUpdated,
    ReferenceUpdated,
)
from dsh.state.credentials.service import (
    ApiKeyRecord,
    CredentialError,
    CredentialProvider,
    CredentialRecord,
    CredentialState,
    Grant,
    RecordState,
    ResolvedCredential,
)

__all__ = [
    "CREDENTIALS_RECORD_UPDATED",
    "CREDENTIALS_REFERENCE_UPDATED",
    "ApiKeyRecord",
    "CredentialError",
    "CredentialProvider",
    "CredentialRecord",
    "CredentialState",
    "Grant",
    "RecordState",
    "RecordUpdated",
    "ReferenceUpdated",
    "ResolvedCredential",
]
