"""Where dsh keeps its files: ``$DSH_HOME``, else ``~/.dsh``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def resolve_dsh_home(
    configured: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None
) -> Path:
    """Return the home folder as an absolute path; it need not exist.

    Args:
        configured: Outranks the environment when it is not blank.
        env: The inherited environment; ``os.environ`` when None.
    """
    variables = os.environ if env is None else env
    for candidate in (configured, variables.get("DSH_HOME")):
        if candidate is not None and os.fspath(candidate).strip():
            return Path(os.path.abspath(_expand(os.fspath(candidate), variables)))  # noqa: PTH100
    return _user_home(variables) / ".dsh"


def display_home(home: Path, env: Mapping[str, str] | None = None) -> str:
    """Return how texts call the home folder; never a path of this machine."""
    variables = os.environ if env is None else env
    return "~/.dsh" if home == _user_home(variables) / ".dsh" else "$DSH_HOME"


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Expand a leading ``~`` alone; ``~name`` stays, it is somebody else's folder."""
    if text == "~":
        return str(_user_home(env))
    if text.startswith(("~/", "~\\")):
        return str(_user_home(env) / text[2:])
    return text


def _user_home(env: Mapping[str, str]) -> Path:
    return Path(env["HOME"]) if env.get("HOME") else Path.home()
