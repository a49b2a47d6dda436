"""The credential seam: secrets by the names that configuration gives them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.json import JsonValue

__all__ = [
    "ApiKeyRecord",
    "CredentialError",
    "CredentialProvider",
    "CredentialRecord",
    "CredentialShadowed",
    "CredentialSource",
    "CredentialState",
    "CredentialsClosed",
    "Grant",
    "InvalidCredentialName",
    "InvalidCredentialValue",
    "RecordState",
    "ResolvedCredential",
    "check_record_key",
    "check_reference",
]

CredentialSource = Literal["env", "file", "project-env", "user-env"]
"""Where a value comes from: the environment, the store, or a ``.env`` file."""

_REFERENCE = r"[A-Za-z_][A-Za-z0-9_]*"
_RECORD = r"[a-z][a-z0-9-]*/[a-z][a-z0-9-]*"


class CredentialError(DshError):
    """Base of everything the credential store refuses; its text never has a secret."""

    code = "CREDENTIAL"


class InvalidCredentialName(CredentialError, ValueError):
    """A reference or a record key is not one."""

    code = "CREDENTIAL_NAME"


class InvalidCredentialValue(CredentialError, ValueError):
    """A value cannot be a secret that is stored."""

    code = "CREDENTIAL_VALUE"


class CredentialShadowed(CredentialError):
    """The environment has the name, and outranks what would be stored.

    Attributes:
        ref: The name.
    """

    code = "CREDENTIAL_SHADOWED"

    def __init__(self, ref: str) -> None:
        super().__init__(
            f"{ref} is set in the environment, which outranks the store; a stored value would "
            "have no effect. unset it there first"
        )
        self.ref = ref


class CredentialsClosed(CredentialError):
    """The store is unloading."""

    code = "CREDENTIALS_CLOSED"

    def __init__(self) -> None:
        super().__init__("the credential store is unloading and takes no more requests")


@value
class ResolvedCredential:
    """A secret, and where it comes from; printing it shows the latter alone."""

    value: str = field(repr=False)
    source: CredentialSource


@value
class CredentialState:
    """What may be shown of a reference."""

    configured: bool
    writable: bool
    """Whether storing a value would have an effect."""
    source: CredentialSource | None = None


@value
class ApiKeyRecord:
    """A key that a plugin keeps; without key and variables it stands for an ambient one."""

    key: str | None = field(default=None, repr=False)
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """Variables that the owner needs, with their values."""
    kind: Literal["api-key"] = "api-key"


@value
class Grant:
    """What an authorization gave, in a shape that only its owner knows."""

    payload: JsonValue = field(repr=False)
    kind: Literal["grant"] = "grant"


CredentialRecord: TypeAlias = "ApiKeyRecord | Grant"


@value
class RecordState:
    """What may be shown of a record."""

    key: str
    configured: bool
    writable: bool = True
    kind: Literal["api-key", "grant"] | None = None


class CredentialProvider(Service, ABC):
    """Finds secrets. Ask anew for each operation, and keep no value.

    References are names of environment variables; records have keys ``<plugin>/<id>``. All
    methods raise `InvalidCredentialName` for what is neither, and `CredentialsClosed` once the
    store unloads.
    """

    name = "credentials"

    @abstractmethod
    async def resolve(self, ref: str) -> ResolvedCredential | None:
        """Return the value of a reference; an empty one counts as none.

        In this order: inherited environment, store, the project's ``.env``, the user's.
        """

    @abstractmethod
    async def describe(self, ref: str) -> CredentialState:
        """Say whether and from where a reference has a value."""

    @abstractmethod
    async def set(self, ref: str, value: str) -> None:
        """Store a value.

        Raises:
            CredentialShadowed: the environment has the name.
            InvalidCredentialValue: it is empty, or not one line of text.
            DshError: the store cannot be written.
        """

    @abstractmethod
    async def unset(self, ref: str) -> bool:
        """Take a value out of the store; tells whether one was there.

        Raises:
            CredentialShadowed: the environment has the name.
            DshError: the store cannot be written.
        """

    @abstractmethod
    async def read_record(self, key: str) -> CredentialRecord | None:
        """Return a record."""

    @abstractmethod
    async def describe_record(self, key: str) -> RecordState:
        """Say whether a record is there, and of which kind."""

    @abstractmethod
    async def list_records(self) -> list[RecordState]:
        """Return all records, without what they hold."""

    @abstractmethod
    async def modify_record(
        self,
        key: str,
        mutate: Callable[[CredentialRecord | None], Awaitable[CredentialRecord | None]],
    ) -> CredentialRecord | None:
        """Replace a record by what ``mutate`` makes of it; no process writes meanwhile.

        Args:
            key: The record.
            mutate: Gets the record as it is stored now, and returns the new one; None deletes
                it. What it raises leaves the store as it was. It must not write credentials
                itself.

        Returns:
            The new record.

        Raises:
            InvalidCredentialValue: the new record is not JSON.
            DshError: the store cannot be written.
        """

    @abstractmethod
    async def delete_record(self, key: str) -> bool:
        """Delete a record; tells whether one was there."""


def check_reference(ref: str) -> None:
    """Refuse what is no reference.

    Raises:
        InvalidCredentialName: it is no name of an environment variable.
    """
    if not isinstance(ref, str) or re.fullmatch(_REFERENCE, ref) is None:
        raise InvalidCredentialName(
            "a credential is named like an environment variable: letters, digits and _, not a "
            "digit first"
        )


def check_record_key(key: str) -> None:
    """Refuse what is no key of a record.

    Raises:
        InvalidCredentialName: it is not ``<plugin>/<id>``.
    """
    if not isinstance(key, str) or re.fullmatch(_RECORD, key) is None:
        raise InvalidCredentialName(
            "a credential record is named <plugin>/<id>, each in lower case, a letter first"
        )
