"""The telemetry seam: records of what sessions do, and the backend that takes them away."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from dsh.base.values import value
from dsh.kernel import Service

__all__ = [
    "Channel",
    "SessionTelemetryBackend",
    "Severity",
    "Sharing",
    "TelemetryRecord",
]

Sharing: TypeAlias = Literal["full", "feedback-only", "disabled"]
"""How much leaves this machine: all sessions, those with feedback, or nothing."""

Channel: TypeAlias = Literal["ledger", "ops"]
"""``ledger``: what is in a log. ``ops``: what is not, such as failures and ends."""

Severity: TypeAlias = Literal["info", "warn", "error"]
"""How bad it is."""


@value
class TelemetryRecord:
    """One thing that happened. Its attributes and body belong to whoever holds it."""

    channel: Channel
    time: int
    """Milliseconds since the epoch."""
    severity: Severity
    attributes: Mapping[str, str | int]
    body: Any
    """JSON; a copy of the data of an event in the ledger."""


class SessionTelemetryBackend(Service, ABC):
    """Takes records away from the loop, to wherever they are kept."""

    name: ClassVar[str] = "session_telemetry"

    @property
    @abstractmethod
    def sharing(self) -> Sharing:
        """How much leaves this machine now."""

    @abstractmethod
    def emit(self, record: TelemetryRecord) -> None:
        """Queue a record, without waiting.

        Raises:
            Exception: the record was not taken; whoever has it offers it again later.
        """

    def flush(self) -> None:
        """Hear that now is a good moment to send what is queued; nobody waits for it.

        Backends that want the hint override this.
        """

    @abstractmethod
    async def shutdown(self) -> None:
        """Send what is queued, within a bound, and take no more. A second call joins the first."""
