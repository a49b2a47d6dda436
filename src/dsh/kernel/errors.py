"""Errors of the composition kernel; each says what was refused, where, and what to do.

``KernelError`` is what a caller catches; the leaves also are the builtin that fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsh.base.errors import DshError, message_of


class KernelError(DshError):
    """The kernel refused an operation."""

    code = "KERNEL"


class InactiveEffect(KernelError, RuntimeError):
    """Something was to be registered on a fiber that is unloading or gone."""

    code = "INACTIVE_EFFECT"

    def __init__(self, owner: str, state: str) -> None:
        super().__init__(
            f"cannot create effect on inactive context: plugin {owner!r} is {state}; "
            "register while it is loading or active"
        )
        self.owner, self.state = owner, state


class ReentrantAwait(KernelError, RuntimeError):
    """A transition was awaited from inside itself, which could never end."""

    code = "REENTRANT_AWAIT"

    def __init__(self, awaited: str, inside: str) -> None:
        super().__init__(
            f"{awaited} cannot be awaited from inside {inside}: it waits for that code to end; "
            "request it without awaiting"
        )
        self.awaited, self.inside = awaited, inside


class RebaseError(KernelError, ValueError):
    """An anchor cannot go where it was told to."""

    code = "REBASE"

    def __init__(self, problem: str) -> None:
        super().__init__(f"cannot rebase this context: {problem}")


class LeaseExpired(KernelError, TimeoutError):
    """A plugin was unloaded though work was still in flight through it."""

    code = "LEASE_EXPIRED"

    def __init__(self, plugin: str, labels: Sequence[str], grace_s: float) -> None:
        super().__init__(
            f"plugin {plugin!r} is unloaded with work still in flight after {grace_s:g} s: "
            f"{', '.join(labels)}"
        )
        self.plugin, self.labels = plugin, tuple(labels)


class SetupOverdue(KernelError, TimeoutError):
    """A plugin is unloaded, and its setup was cancelled because it did not end by itself."""

    code = "SETUP_OVERDUE"

    def __init__(self, plugin: str, grace_s: float) -> None:
        super().__init__(
            f"plugin {plugin!r} is unloaded, but its setup still runs after {grace_s:g} s and is "
            "cancelled; a setup that takes long should end when ctx.stop aborts"
        )
        self.plugin = plugin


class WrongLoop(KernelError, RuntimeError):
    """A context was used from another event loop or thread, or without a running loop."""

    code = "WRONG_LOOP"

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(f"{what} {problem}")
        self.what = what


class StrayExit(KernelError, RuntimeError):
    """Plugin code raised what means to end a task or the process; the cause is what it raised.

    Such are ``SystemExit``, ``KeyboardInterrupt``, ``GeneratorExit``, a ``CancelledError``
    though nobody cancelled, and whatever else is no ``Exception``.
    """

    code = "STRAY_EXIT"

    def __init__(self, label: str, plugin: str, raised: BaseException) -> None:
        kind, text = type(raised).__name__, message_of(raised)
        shown = text if kind in text else f"{kind}: {text}"
        super().__init__(
            f"{label} of plugin {plugin!r} raised {shown}; a plugin may end neither the process "
            "nor a task of others, so raise an ordinary error"
        )
        self.label, self.plugin, self.raised = label, plugin, raised


class ModeError(KernelError, TypeError):
    """An event was dispatched in a mode that it does not declare."""

    code = "MODE"

    def __init__(self, event: str, declared: str, used: str) -> None:
        super().__init__(
            f"event {event!r} is declared as {declared} and cannot be dispatched by {used}"
        )
        self.event, self.declared, self.used = event, declared, used


class InvalidEffect(KernelError, TypeError):
    """A setup returned or yielded something that cannot be undone."""

    code = "INVALID_EFFECT"

    def __init__(self, label: str, value: object) -> None:
        super().__init__(
            f"invalid effect {label!r}: got {type(value).__name__}, expected None, an undo "
            "callable, a context manager, an awaitable, an iterator of undos, or an Effect"
        )
        self.label = label


class InvalidPlugin(KernelError, TypeError):
    """A value that is not a plugin was mounted."""

    code = "INVALID_PLUGIN"

    def __init__(self, value: object) -> None:
        super().__init__(
            "invalid plugin, expected a function, a class or an object with apply(), "
            f"got {type(value).__name__}"
        )


class ValidationError(KernelError, TypeError):
    """A plugin's config does not fit its ``Config``.

    Attributes:
        issues: Pairs of message and dotted path; the path is empty for the whole value.
    """

    code = "VALIDATION"

    def __init__(self, issues: Sequence[tuple[str, str]]) -> None:
        lines = [f"  - {text}" + (f" (at {path})" if path else "") for text, path in issues]
        super().__init__("\n".join(["invalid config:", *lines]))
        self.issues = tuple(issues)


class ServiceError(KernelError, AttributeError, LookupError):
    """A service could not be read, provided or replaced."""

    code = "SERVICE"

    def __init__(self, message: str, service: str) -> None:
        super().__init__(message)
        self.service = service


class UndeclaredService(ServiceError):
    """A plugin read a service that it did not declare and no ancestor provides."""

    code = "UNDECLARED"

    def __init__(self, service: str, plugin: str, provider: str | None) -> None:
        where = f"{provider!r} provides it" if provider else "no mounted plugin provides it"
        super().__init__(
            f'cannot get property "{service}" without inject: plugin {plugin!r} does not declare '
            f"it, and {where}; add it to inject, or use ctx.get() where it is optional",
            service,
        )
        self.plugin, self.provider = plugin, provider


class InactiveService(ServiceError):
    """A declared service was read while the plugin does not hold it."""

    code = "INACTIVE"

    def __init__(self, service: str, plugin: str) -> None:
        super().__init__(
            f'cannot get required service "{service}" in inactive context: '
            f"plugin {plugin!r} is not running against it now",
            service,
        )
        self.plugin = plugin


class DuplicateService(ServiceError, ValueError):
    """A name was provided twice in one scope."""

    code = "DUPLICATE"

    def __init__(self, service: str, owner: str) -> None:
        super().__init__(
            f'service "{service}" has been registered at {owner}; '
            "unload that plugin first, or isolate the name",
            service,
        )
        self.owner = owner


class ServiceNotProvided(ServiceError):
    """A service was read or set that nobody provides here."""

    code = "NOT_PROVIDED"

    def __init__(self, service: str, action: str = "read") -> None:
        super().__init__(
            f'cannot {action} service "{service}": it is not provided in this scope; '
            f"use ctx.provide({service!r}, value) first",
            service,
        )


class NotServiceOwner(ServiceError):
    """Another plugin than the owner tried to replace a service's value."""

    code = "NOT_OWNER"

    def __init__(self, service: str, owner: str, plugin: str) -> None:
        super().__init__(
            f'cannot set service "{service}" from plugin {plugin!r}: it belongs to {owner!r}',
            service,
        )
        self.owner, self.plugin = owner, plugin


class ContextReadOnly(KernelError, AttributeError):
    """An attribute of a context was assigned."""

    code = "READ_ONLY"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"cannot set property {name!r} on a context: a service must be provided with "
            f"ctx.provide({name!r}, value); other data belongs in ctx.extend(meta=...)"
        )
        self.name = name


class ScopeError(KernelError, ValueError):
    """A scope key was linked twice, in a cycle, or not at all."""

    code = "SCOPE"
