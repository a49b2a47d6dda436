"""Which names bindings may have, in every language that a program may be written in."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Sequence

from dsh.capability.code_runtime.service import Binding, BindingNamespace, InvalidBindings

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_ECMASCRIPT = """
    abstract arguments async await boolean break byte case catch char class const continue debugger
    default delete do double else enum eval export extends false final finally float for function
    get goto if implements import in instanceof int interface let long native new null of package
    private protected public return set short static super switch synchronized this throw throws
    transient true try typeof undefined var void volatile while with yield
"""
RESERVED_WORDS = frozenset(
    [*_ECMASCRIPT.split(), *keyword.kwlist, *keyword.softkwlist, "type", "_"]
)
"""Words that mean something in ECMAScript or in any supported Python."""

INJECTED_NAMES = frozenset({"console", "__dsh_main__", "__builtins__", "__name__", "__debug__"})
"""Names that a runtime itself puts into a program's globals."""

_ERROR_ATTRIBUTES = frozenset({"name", "message", "stack", "args", "with_traceback", "add_note"})


def check_bindings(bindings: Iterable[BindingNamespace]) -> tuple[BindingNamespace, ...]:
    """Return the namespaces of a run as they are now.

    Raises:
        InvalidBindings: a name cannot be used; the sentence names it and says why.
    """
    namespaces = tuple(bindings)
    taken: set[str] = set()
    for role, name in _global_names(namespaces):
        if (checked := _checked(role, name)) in taken:
            raise InvalidBindings(f"{role} {name!r} is a global name that is taken in this run")
        taken.add(checked)
    for namespace in namespaces:
        _check_functions(namespace)
        if namespace.error is not None:
            _check_property(namespace.error.member_property)
    return namespaces


def functions_of(namespaces: Sequence[BindingNamespace]) -> dict[tuple[str, str], Binding]:
    """Return every function by the two names under which a program calls it."""
    return {
        (namespace.name, name): function
        for namespace in namespaces
        for name, function in namespace.functions.items()
    }


def _global_names(namespaces: Iterable[BindingNamespace]) -> Iterator[tuple[str, object]]:
    for namespace in namespaces:
        yield "binding namespace", namespace.name
        if namespace.error is not None:
            yield "error class", namespace.error.name


def _checked(role: str, name: object) -> str:
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise InvalidBindings(
            f"{role} {name!r} is not an ASCII identifier: use letters, digits and underscores"
        )
    if name in RESERVED_WORDS or name in INJECTED_NAMES:
        raise InvalidBindings(f"{role} {name!r} is a reserved word; choose another name")
    return name


def _check_functions(namespace: BindingNamespace) -> None:
    for name, function in namespace.functions.items():
        if not isinstance(name, str) or not name:
            raise InvalidBindings(f"{namespace.name!r} has a function without a name that is text")
        if not callable(function):
            raise InvalidBindings(f"{namespace.name}[{name!r}] is not callable")


def _check_property(name: object) -> None:
    usable = isinstance(name, str) and name and name not in _ERROR_ATTRIBUTES
    if not usable or (str(name).startswith("__") and str(name).endswith("__")):
        raise InvalidBindings(
            f"an error class cannot keep the name of the function in its attribute {name!r}"
        )
