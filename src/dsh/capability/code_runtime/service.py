"""The code runtime seam: running a program of the model's, away from dsh itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from dsh.base.errors import DshError
from dsh.base.json import JsonValue
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.state.session.session import Session

CodeErrorKind = Literal[
    "exception", "timeout", "abort", "worker-exit", "invalid-output", "output-limit"
]
"""Why a program has no value.

``exception``: it raised, or cannot be compiled. ``timeout``: it used up its processor time or its
time on the clock. ``abort``: the signal, or the end of the runtime. ``worker-exit``: its process
ended or ran out of memory, or could not be started. ``invalid-output``: what it returned is not
JSON. ``output-limit``: it printed and returned more than the limit.
"""

CODE_ERROR_KINDS: tuple[CodeErrorKind, ...] = get_args(CodeErrorKind)
"""Every kind."""

Binding: TypeAlias = Callable[[JsonValue], Awaitable[JsonValue]]
"""A function of dsh that a program may call: one JSON value in, one out.

What it raises reaches the program as its message alone. It is cancelled when the run ends first.
"""


class CodeRuntimeError(DshError):
    """A caller misused the runtime; what programs do wrong is part of `CodeResult`."""

    code = "CODE_RUNTIME"


class InvalidBindings(CodeRuntimeError, ValueError):
    """The bindings of a run cannot be given to a program under these names."""

    code = "INVALID_BINDINGS"


class CodeRuntimeClosed(CodeRuntimeError, RuntimeError):
    """A run was asked for after the runtime had been unloaded."""

    code = "CODE_RUNTIME_CLOSED"

    def __init__(self) -> None:
        super().__init__("the code runtime has been unloaded; look up ctx.code_runtime again")


@value
class BindingError:
    """The class whose instances failed calls raise in the program."""

    name: str
    """Its global name."""
    member_property: str
    """Attribute that names the function that failed."""


@value
class BindingNamespace:
    """Functions that a program reaches as ``name.function(...)`` or ``name["function"](...)``."""

    name: str
    functions: Mapping[str, Binding]
    error: BindingError | None = None
    """Default: failed calls raise ``RuntimeError``."""


@value
class CodeRun:
    """One program to run."""

    program: str
    """The body of an async function in the language of the runtime."""
    bindings: Iterable[BindingNamespace] = ()
    signal: AbortSignal | None = None
    """Aborted already, it makes the run fail before anything is started."""
    session: Session | None = None
    """Whose file policy the program is held to; without one, the deployment's."""


@value
class CodeError:
    """Why a program has no value."""

    kind: CodeErrorKind
    message: str


@value
class CodeResult:
    """What came of a program."""

    value: JsonValue = None
    """What it returned; ``None`` also when it returned nothing."""
    logs: tuple[str, ...] = ()
    """What it printed, a line or several an entry; kept when it failed."""
    error: CodeError | None = None


class CodeRuntime(Service, ABC):
    """Runs programs, each by itself: nothing of one run is there in the next."""

    name = "code_runtime"

    language: str
    """What programs are written in, such as ``python``."""
    isolation: str
    """What stands between a program and dsh, such as ``process``."""

    @abstractmethod
    async def run(self, request: CodeRun) -> CodeResult:
        """Run a program to its end, or to the end of its budget.

        Whatever the program does is in the result. When this returns or raises, everything that
        the program started is gone, and no binding runs any more.

        Raises:
            InvalidBindings: the bindings cannot be named as asked.
            CodeRuntimeClosed: the runtime has been unloaded.
        """
