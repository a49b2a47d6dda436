"""The languages in which tools can be declared for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dsh.base.values import value
from dsh.execution.tools.code import python_sdk
from dsh.execution.tools.code.errors import UnknownCodeLanguage

if TYPE_CHECKING:
    from dsh.execution.tools.service import ToolDefinition


@value
class Flavour:
    """How one language's programs are described to a model."""

    language: str
    description: str
    """Of ``run_code``."""
    code: str
    """Of its parameter."""
    instructions: str
    render: Callable[[Iterable[ToolDefinition]], str]
    """Declares tools."""


PYTHON = Flavour(
    "python", python_sdk.DESCRIPTION, python_sdk.CODE, python_sdk.INSTRUCTIONS, python_sdk.render
)

FLAVOURS = {PYTHON.language: PYTHON}
"""By the ``language`` of a runtime."""


def flavour_of(language: str | None) -> Flavour:
    """Return how to describe programs; ``None`` is no runtime, where nobody can call anyway.

    Raises:
        UnknownCodeLanguage: nobody has said how.
    """
    if language is None:
        return PYTHON
    if language not in FLAVOURS:
        raise UnknownCodeLanguage(language, sorted(FLAVOURS))
    return FLAVOURS[language]
