"""Filling ``{{name}}`` in the texts of a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dsh.base.text import did_you_mean
from dsh.model.rehearsal.reader import ScriptError

__all__ = ["Filler"]

_SLOT = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?::(.*?))?\s*\}\}", re.DOTALL)
_MAX_DEPTH = 8


class Filler:
    """Fills slots from variables and from the request that is being answered.

    Args:
        variables: Values by name; they may hold slots themselves.
        texts: All texts of the request, oldest first, for ``{{from_request:REGEX}}``.
        place: Where in the script the texts are, for errors.
    """

    def __init__(self, variables: Mapping[str, str], texts: Sequence[str], place: str) -> None:
        self._variables = variables
        self._texts = texts
        self._place = place

    def text(self, text: str, depth: int = 0) -> str:
        """Return ``text`` with its slots filled.

        Raises:
            ScriptError: a name is unknown, or nothing in the request matches.
        """
        if "{{" not in text:
            return text
        return _SLOT.sub(lambda slot: self._value(slot[1], slot[2], depth), text)

    def value(self, value: Any) -> Any:
        """Fill every text, keys included, inside a JSON value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item) for item in value]
        return value

    def _value(self, name: str, argument: str | None, depth: int) -> str:
        if name == "from_request":
            return self._from_request(argument or "")
        if name not in self._variables:
            known = [*self._variables, "from_request"]
            hint = did_you_mean(name, known) or f"; known are {', '.join(sorted(known))}"
            raise ScriptError(self._place, f"unknown variable {name!r}{hint}")
        if depth >= _MAX_DEPTH:
            raise ScriptError(self._place, f"the variable {name!r} contains itself")
        return self.text(self._variables[name], depth + 1)

    def _from_request(self, expression: str) -> str:
        try:
            pattern = re.compile(expression, re.MULTILINE)
        except re.error as error:
            raise ScriptError(
                self._place, f"{expression!r} is no regular expression: {error}"
            ) from error
        for text in reversed(self._texts):
            found = list(pattern.finditer(text))
            if found:
                return (found[-1][1] or "") if pattern.groups else found[-1][0]
        raise ScriptError(
            self._place,
            f"nothing in the request matches {expression!r}",
            code="REHEARSAL_MISMATCH",
        )
