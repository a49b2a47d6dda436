"""The order in which a reference is looked up, for a tree and for a command alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsh.loader.environment import EnvSource, LaunchEnvironment
from dsh.state.credentials.service import CredentialSource, ResolvedCredential

__all__ = ["inherited", "resolve_in", "sources_of"]

_ABOVE: Final[tuple[tuple[EnvSource, CredentialSource], ...]] = (("process", "env"),)
_BELOW: Final[tuple[tuple[EnvSource, CredentialSource], ...]] = (
    ("project-env", "project-env"),
    ("user-env", "user-env"),
)


def resolve_in(
    environment: LaunchEnvironment, stored: Mapping[str, str], ref: str
) -> ResolvedCredential | None:
    """Return the value of a reference from the most trusted layer that has one."""
    return next(iter(sources_of(environment, stored, ref)), None)


def sources_of(
    environment: LaunchEnvironment, stored: Mapping[str, str], ref: str
) -> list[ResolvedCredential]:
    """Return the values of a reference in all layers, the one that counts first."""
    found = [_from(environment, layer, ref) for layer in _ABOVE]
    if text := stored.get(ref):
        found.append(ResolvedCredential(text, "file"))
    found += [_from(environment, layer, ref) for layer in _BELOW]
    return [each for each in found if each is not None]


def inherited(environment: LaunchEnvironment, ref: str) -> bool:
    """Whether the inherited environment has a value, which nothing stored can replace."""
    return any(_from(environment, layer, ref) is not None for layer in _ABOVE)


def _from(
    environment: LaunchEnvironment, layer: tuple[EnvSource, CredentialSource], ref: str
) -> ResolvedCredential | None:
    found = environment.get_from(ref, [layer[0]])
    return ResolvedCredential(found.value, layer[1]) if found is not None and found.value else None
