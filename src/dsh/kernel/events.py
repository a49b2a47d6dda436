"""Event declarations: an object carries an event's wire name, mode and types.

Declare events once, at module level; dispatch and subscribe with the object. The kernel's own
events are at the end; their names are wire facts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from dsh.kernel.fiber import Fiber
    from dsh.kernel.states import FiberState

T = TypeVar("T")
R = TypeVar("R")

ErrorMode: TypeAlias = Literal["raise", "contain", "veto"]


class Event(Generic[T]):
    """What every declaration has: a wire name and a dispatch mode."""

    __slots__ = ("name",)
    mode: ClassVar[str] = "event"

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Emit(Event[T]):
    """Tells listeners in order, without waiting for coroutines they return.

    Attributes:
        errors: ``raise``: all listeners run, then the caller gets what failed (several as a
            group). ``contain``: failures are reported, the caller never sees them. ``veto``:
            the first failure stops the rest and reaches the caller.
    """

    __slots__ = ("errors",)
    mode = "emit"

    def __init__(self, name: str, *, errors: ErrorMode = "raise") -> None:
        super().__init__(name)
        self.errors = errors


class Parallel(Event[T]):
    """Runs all listeners at once and waits for each; failures come together, as a group."""

    __slots__ = ()
    mode = "parallel"


class Serial(Event[T], Generic[T, R]):
    """Awaits listeners one by one until one answers with something else than None or False."""

    __slots__ = ()
    mode = "serial"


class Bail(Event[T], Generic[T, R]):
    """Like ``Serial``, synchronous."""

    __slots__ = ()
    mode = "bail"


class Waterfall(Event[T], Generic[T, R]):
    """Nests listeners around an inner operation; each decides whether to call ``next``."""

    __slots__ = ()
    mode = "waterfall"


class WaterfallSync(Event[T], Generic[T, R]):
    """Like ``Waterfall``, synchronous."""

    __slots__ = ()
    mode = "waterfall_sync"


Next: TypeAlias = Callable[[], Awaitable[R]]
"""What a waterfall listener calls to run the rest; it may be called again."""

SyncNext: TypeAlias = Callable[[], R]
"""The same for synchronous waterfalls."""


class FiberAnnounced:
    """A fiber was created (``uid`` set) or is being disposed of (``uid`` is None)."""

    __slots__ = ("fiber",)

    def __init__(self, fiber: Fiber) -> None:
        self.fiber = fiber


class StatusChanged:
    """A fiber's state changed; ``old`` is what it was."""

    __slots__ = ("fiber", "old")

    def __init__(self, fiber: Fiber, old: FiberState) -> None:
        self.fiber, self.old = fiber, old


class ConfigResolving:
    """A fiber's raw config is about to be validated; listeners return what to use instead."""

    __slots__ = ("config", "fiber")

    def __init__(self, fiber: Fiber, config: Any) -> None:
        self.fiber, self.config = fiber, config


class UpdateRequested:
    """A running fiber is given another config; not calling ``next`` keeps it running."""

    __slots__ = ("config", "fiber", "no_save")

    def __init__(self, fiber: Fiber, config: Any, no_save: bool) -> None:
        self.fiber, self.config, self.no_save = fiber, config, no_save


class ServiceChanged:
    """A service appeared, vanished, or became readable or unreadable (``value`` is None)."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value


class Dispatching:
    """An event is about to reach its listeners; raising stops it and reaches the dispatcher."""

    __slots__ = ("mode", "name", "payload", "target")

    def __init__(self, mode: str, name: str, payload: Any, target: object) -> None:
        self.mode, self.name, self.payload, self.target = mode, name, payload, target


class DisposalJoined:
    """Someone awaits a fiber's disposal or restart; dispatched in the awaiter's own context."""

    __slots__ = ("fiber",)

    def __init__(self, fiber: Fiber) -> None:
        self.fiber = fiber


INTERNAL_PLUGIN = Emit[FiberAnnounced]("internal/plugin")
"""At mount (an error undoes it and reaches the mounter) and at disposal (errors are reported)."""
INTERNAL_STATUS = Emit[StatusChanged]("internal/status", errors="contain")
"""After each state change."""
INTERNAL_CONFIG = WaterfallSync[ConfigResolving, Any]("internal/config")
"""Before each activation and in ``update``; injected services are readable."""
INTERNAL_UPDATE = Waterfall[UpdateRequested, Any]("internal/update")
"""Around the restart that an update causes; a fiber's own listeners see only its updates."""
INTERNAL_SERVICE = Emit[ServiceChanged]("internal/service", errors="contain")
"""After a service changed; only listeners in the scope of its name."""
INTERNAL_DISPATCH = Emit[Dispatching]("internal/dispatch", errors="veto")
"""Before every event whose name does not start with ``internal/``."""
INTERNAL_JOIN = Emit[DisposalJoined]("internal/join", errors="contain")
"""When a disposal, a restart or an update is awaited, before the wait."""
