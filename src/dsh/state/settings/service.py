"""The settings seam: sections of a user's document over what rows configure, live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dsh.base.json import JsonObject, JsonValue
    from dsh.kernel import Context, Effect

__all__ = [
    "Applies",
    "DuplicateNamespace",
    "InvalidSettingsModel",
    "LiveSection",
    "SecretPath",
    "SettingsClosed",
    "SettingsConflict",
    "SettingsDescriptor",
    "SettingsError",
    "SettingsProvider",
    "SettingsReadOnly",
    "SettingsRefused",
    "SettingsScope",
    "UnknownNamespace",
]

T = TypeVar("T")
M = TypeVar("M", bound="BaseModel")

Applies = Literal["live", "restart"]
"""When a change has an effect: at once, or when the plugin loads again."""


class SettingsError(DshError):
    """Base of everything the settings refuse."""

    code = "SETTINGS"


class SettingsRefused(SettingsError, ValueError):
    """A write, or a stored section, holds what the namespace does not take.

    Attributes:
        ns: The namespace.
        path: Where, from ``$``, the section's root.
        problem: What is wrong; never a secret.
    """

    code = "SETTINGS_REJECTED"

    def __init__(self, ns: str, path: str, problem: str) -> None:
        super().__init__(f"settings {ns!r}: {path}: {problem}")
        self.ns, self.path, self.problem = ns, path, problem


class SettingsConflict(SettingsError):
    """Somebody changed the section since the writer looked at it.

    Attributes:
        ns: The namespace.
        expected: The revision that the writer saw.
        actual: The revision now.
    """

    code = "SETTINGS_CONFLICT"

    def __init__(self, ns: str, expected: int, actual: int) -> None:
        super().__init__(
            f"settings {ns!r} changed meanwhile: revision {expected} was expected, it is {actual}; "
            "read them again and repeat the change"
        )
        self.ns, self.expected, self.actual = ns, expected, actual


class UnknownNamespace(SettingsError, LookupError):
    """Nobody registered the namespace that is written."""

    code = "SETTINGS_UNKNOWN"

    def __init__(self, ns: str, near: str = "") -> None:
        super().__init__(f"no plugin has settings {ns!r}{near}; its row may be disabled")
        self.ns = ns


class DuplicateNamespace(SettingsError):
    """Another live registration has the namespace."""

    code = "SETTINGS_DUPLICATE"

    def __init__(self, ns: str) -> None:
        super().__init__(f"settings {ns!r} are registered already; a namespace has one owner")
        self.ns = ns


class InvalidSettingsModel(SettingsError, TypeError):
    """A namespace or its model cannot be registered."""

    code = "SETTINGS_MODEL"


class SettingsReadOnly(SettingsError):
    """The provider keeps no document that could be written."""

    code = "SETTINGS_READ_ONLY"

    def __init__(self) -> None:
        super().__init__("these settings are read-only: their provider stores nothing")


class SettingsClosed(SettingsError):
    """The settings, or the plugin that registered the namespace, are unloading."""

    code = "SETTINGS_CLOSED"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is unloading and takes no more changes")


@value
class SecretPath:
    """Where a section has, or could have, a secret."""

    path: tuple[str | int, ...]
    set: bool
    """Whether a value is there."""


@value
class SettingsDescriptor:
    """One namespace as a settings editor sees it."""

    ns: str
    schema: JsonObject
    """JSON Schema; a secret's node has ``x-role: secret`` and no default."""
    value: JsonObject
    """What is in force: defaults, under the row's config, under the user's section."""
    revision: int
    applies: Applies
    base: JsonObject | None = None
    """What the row's config gives."""
    user: JsonObject | None = None
    """The user's section."""
    secrets: tuple[SecretPath, ...] | None = None
    """With redaction: what was taken out of ``value``, ``base`` and ``user``."""

    def __repr__(self) -> str:  # without redaction the values hold secrets
        return f"SettingsDescriptor({self.ns!r}, revision={self.revision})"

    def to_json(self) -> dict[str, Any]:
        """Return the descriptor in wire shape; what is absent is left out."""
        out: dict[str, Any] = {name: getattr(self, name) for name in _ALWAYS}
        out |= {
            name: given for name in ("base", "user") if (given := getattr(self, name)) is not None
        }
        if self.secrets is not None:
            out["secrets"] = [{"path": list(each.path), "set": each.set} for each in self.secrets]
        return out


_ALWAYS = ("ns", "schema", "value", "revision", "applies")


class SettingsScope(ABC, Generic[T]):
    """The settings of one namespace, for the plugin that registered it."""

    ns: str

    @abstractmethod
    def get(self) -> T:
        """Return the settings in force: one frozen object until they change."""

    @abstractmethod
    def watch(self, callback: Callable[[T, T], Awaitable[object] | object]) -> Effect:
        """Call ``callback(next, prev)`` after each change, in the order of the changes.

        Calls of one callback never overlap; what it raises is reported. The effect belongs to
        who registered the namespace: it is undone with it, waits for a call under way, and
        drops the calls that are due.
        """

    @abstractmethod
    def update(
        self, patch: Mapping[str, Any], expected_revision: int | None = None
    ) -> Awaitable[None]:
        """See `SettingsProvider.update`."""

    @abstractmethod
    def replace(
        self, section: Mapping[str, Any], expected_revision: int | None = None
    ) -> Awaitable[None]:
        """See `SettingsProvider.replace`."""


class SettingsProvider(Service, ABC):
    """Keeps a user's settings.

    A section goes over the config of a plugin's row, which goes over the defaults of the
    plugin's model. A write takes what it is given at the call, is carried out in the order of
    the calls, awaited or not, and raises at the call or when it is awaited.
    """

    name = "settings"

    @property
    @abstractmethod
    def writable(self) -> bool:
        """Whether anything can be stored."""

    @property
    @abstractmethod
    def document_path(self) -> Path | None:
        """The document that the user may open, if there is one."""

    @abstractmethod
    async def prepare_document(self) -> Path | None:
        """Make the document if it is not there yet, so that it can be opened; return its path.

        Raises:
            DshError: it cannot be made.
        """

    @abstractmethod
    def register(
        self,
        ns: str,
        schema: type[M],
        *,
        base: Mapping[str, Any] | None = None,
        applies: Applies = "live",
        validate: Callable[[M], object] | None = None,
    ) -> SettingsScope[M]:
        """Declare a namespace until the calling plugin unloads.

        Args:
            ns: Kebab-case, beginning with a letter; the section's key in the document.
            schema: A frozen pydantic model. Mark secrets as `SecretStr`, or by
                ``json_schema_extra={"x-role": "secret"}``.
            base: What the plugin's row sets, in wire spelling.
            applies: When changes have an effect.
            validate: Raises for a combination that the schema lets through. A write is refused
                then; a document that was edited so is not applied.

        Raises:
            DuplicateNamespace: another plugin has it.
            InvalidSettingsModel: the name or the model is unusable.
            SettingsRefused: what is stored, or ``base``, does not fit.
        """

    @abstractmethod
    def describe(self, *, redact_secrets: bool = False) -> list[SettingsDescriptor]:
        """Return all registered namespaces, in the order of registration.

        Args:
            redact_secrets: Take secrets out. Every surface that leaves the process must.
        """

    @abstractmethod
    def get(self, ns: str) -> Any | None:
        """Return what the scope of a namespace returns; None when nobody registered it."""

    @abstractmethod
    def update(
        self, ns: str, patch: Mapping[str, Any], expected_revision: int | None = None
    ) -> Awaitable[None]:
        """Merge a patch into the user's section: mappings deeply, lists as a whole.

        A member that is None changes nothing.

        Raises:
            UnknownNamespace: nobody registered it.
            SettingsReadOnly: nothing can be stored.
            SettingsRefused: the patch is not JSON, or its result does not fit.
            SettingsConflict: ``expected_revision`` is not the section's.
            DshError: the document cannot be written.
        """

    @abstractmethod
    def replace(
        self, ns: str, section: Mapping[str, Any], expected_revision: int | None = None
    ) -> Awaitable[None]:
        """Make ``section`` the user's whole section; an empty one takes it out.

        Raises:
            As `update`.
        """

    @abstractmethod
    def mutate(
        self,
        ns: str,
        ops: Sequence[Mapping[str, JsonValue | Sequence[str]]],
        expected_revision: int | None = None,
    ) -> Awaitable[None]:
        """Apply ``{"op": "set", "path", "value"}`` and ``{"op": "unset", "path"}`` as one write.

        A path is a list of keys; an empty one is the section, which stays a mapping. ``set``
        makes the mappings on its way; ``unset`` of what is not there changes nothing. The
        section is read when the write's turn has come.

        Raises:
            As `update`.
        """


class LiveSection(Generic[M]):
    """The settings of a plugin that runs with and without a provider of settings.

    Make it while the plugin loads. A provider that comes, goes or is replaced later changes what
    `get` returns, and does not reload the plugin.

    Args:
        ctx: The plugin's.
        ns: See `SettingsProvider.register`.
        schema: See there.
        row: What the plugin's row sets, in wire spelling; in force without a provider.
        validate: See there.
        on_change: Called with what is in force from now on, and what was before.

    Raises:
        SettingsError: what the present provider stores does not fit.
    """

    def __init__(
        self,
        ctx: Context,
        ns: str,
        schema: type[M],
        *,
        row: Mapping[str, Any],
        validate: Callable[[M], object] | None = None,
        on_change: Callable[[M, M], object] | None = None,
    ) -> None:
        self._ns, self._schema, self._row, self._validate = ns, schema, row, validate
        self._ctx, self._on_change = ctx, on_change
        self._fallback = schema.model_validate(row)
        self._scope: SettingsScope[M] | None = None
        self._first = ctx.get(SettingsProvider)
        if self._first is not None:
            self._scope = self._register(self._first)
        ctx.inject([SettingsProvider], self._attach)

    def get(self) -> M:
        """Return the settings in force."""
        return self._fallback if self._scope is None else self._scope.get()

    async def replace(self, section: Mapping[str, Any]) -> None:
        """Store the user's section; without a provider nothing happens.

        Raises:
            SettingsError: it does not fit, or cannot be stored.
        """
        if self._scope is not None:
            await self._scope.replace(section)

    def _register(self, provider: SettingsProvider) -> SettingsScope[M]:
        scope = provider.register(self._ns, self._schema, base=self._row, validate=self._validate)
        if self._on_change is not None:
            scope.watch(self._on_change)
        return scope

    def _attach(self, ctx: Context) -> None:
        """Follow the provider that is there now, until it goes."""
        provider = ctx.require(SettingsProvider)
        first, self._first = self._first, None
        if provider != first:
            try:
                self._switch(self._register(provider))
            except SettingsError as error:
                ctx.report(error, label=f"taking over the settings {self._ns!r}")
                return
        ctx.defer(lambda: self._switch(None), f"settings.{self._ns}")

    def _switch(self, scope: SettingsScope[M] | None) -> None:
        before, self._scope = self.get(), scope
        if self._on_change is None or self._ctx.stop.aborted:
            return
        if (now := self.get()) != before:
            self._on_change(now, before)
