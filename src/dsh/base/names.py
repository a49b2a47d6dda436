"""The one mapping between Python's spelling of a service key and the wire's."""

from __future__ import annotations

import re

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")
_BAR = re.compile(r"_([a-z0-9])")


def snake(name: str) -> str:
    """Return the Python spelling: ``systemPrompt`` becomes ``system_prompt``."""
    return _HUMP.sub(lambda match: "_" + match[1].lower(), name)


def camel(name: str) -> str:
    """Return the wire spelling: ``system_prompt`` becomes ``systemPrompt``."""
    return _BAR.sub(lambda match: match[1].upper(), name)
