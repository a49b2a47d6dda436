"""The environment that programs inherit: dsh's own, without its secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SECRET_NAMES: tuple[str, ...] = (
    "KEY",
    "PASSWORD",
    "SECRET",
    "TOKEN",
    "PASSPHRASE",
    "PASSWD",
    "CREDENTIAL",
    r"(^|_)AUTH$",
)
"""Patterns, in any case, of names whose values are not handed on."""

_SHORTEST_SECRET = 12
"""Characters. A shorter value under a secret's name may well be an ordinary word elsewhere."""

_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:[^/\s@]+@")


class Scrubber:
    """Decides which variables of dsh a program gets to see."""

    __slots__ = ("_keep", "_secret")

    def __init__(self, extra: Iterable[str] = (), keep: Iterable[str] = ()) -> None:
        """Build one.

        Args:
            extra: More patterns like `SECRET_NAMES`.
            keep: Exact names that pass in spite of a pattern.
        """
        self._secret = re.compile("|".join((*SECRET_NAMES, *extra)), re.IGNORECASE)
        self._keep = frozenset(keep)

    def environment(
        self, ambient: Mapping[str, str], extra: Mapping[str, str | None] | None = None
    ) -> dict[str, str]:
        """Return ``ambient`` without secrets and ``DSH_*``, then ``extra`` laid over it.

        A secret that hides under another name as well, alone or within a longer value, is left
        out there, too.

        Args:
            ambient: What dsh itself has.
            extra: Wins; ``None`` removes a name.
        """
        secrets = [value for name, value in ambient.items() if self._is_secret(name, value)]
        env = {
            name: value
            for name, value in ambient.items()
            if self._passes(name, value) and not any(secret in value for secret in secrets)
        }
        for name, value in (extra or {}).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return env

    def _passes(self, name: str, value: str) -> bool:
        if name in self._keep:
            return True
        if name.startswith("DSH_") or self._secret.search(name):
            return False
        return "://" not in value or not _PASSWORD_IN_URL.search(value)

    def _is_secret(self, name: str, value: str) -> bool:
        """Whether a value would give something away wherever it turns up; paths do not."""
        if name in self._keep or not self._secret.search(name):
            return False
        return len(value) >= _SHORTEST_SECRET and not value.startswith(("/", "~", "."))
