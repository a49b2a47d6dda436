"""Type hints that pydantic can read on every Python version."""

from __future__ import annotations

import sys
import types
import typing
from typing import Annotated, Any

from dsh.execution.tools.service import JsonSchemaError

_UNIONS = (typing.Union, types.UnionType)
_MARKERS = (typing.Required, typing.NotRequired)


def readable(hint: Any) -> Any:
    """Return a hint in which typed dicts are of the kind that pydantic accepts.

    Before Python 3.12 pydantic reads only typed dicts of ``typing_extensions``; this rebuilds
    those of ``typing``, wherever they stand in the hint.

    Raises:
        JsonSchemaError: a typed dict contains itself.
    """
    return hint if sys.version_info >= (3, 12) else _rebuilt(hint, ())


def _rebuilt(hint: Any, inside: tuple[Any, ...]) -> Any:
    if typing.is_typeddict(hint):
        return _typed_dict(hint, inside) if type(hint).__module__ == "typing" else hint
    arguments = typing.get_args(hint)
    if not arguments:
        return hint
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return Annotated[(_rebuilt(arguments[0], inside), *hint.__metadata__)]
    rebuilt = tuple(_rebuilt(argument, inside) for argument in arguments)
    if rebuilt == arguments:
        return hint
    if origin in _UNIONS:
        return typing.Union[rebuilt]  # noqa: UP007  # a tuple of members needs the subscript
    if origin in _MARKERS:
        return origin[rebuilt[0]]
    return origin[rebuilt]


def _typed_dict(hint: Any, inside: tuple[Any, ...]) -> Any:
    from typing_extensions import TypedDict

    if hint in inside:
        raise JsonSchemaError([f"{hint.__name__} contains itself"])
    resolved = typing.get_type_hints(hint, include_extras=True)
    members: dict[str, Any] = {}
    for name, kind in resolved.items():
        # postponed annotations hide the marker from __required_keys__, so the hint counts first
        marker: Any = typing.get_origin(kind)
        if marker in _MARKERS:
            (kind,) = typing.get_args(kind)
        else:
            marker = typing.Required if name in hint.__required_keys__ else typing.NotRequired
        members[name] = marker[_rebuilt(kind, (*inside, hint))]
    make: Any = TypedDict
    made = make(hint.__name__, members)
    made.__doc__ = hint.__doc__
    made.__module__ = hint.__module__
    return made
