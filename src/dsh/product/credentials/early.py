"""What keys and settings a profile will find, known before anything is mounted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os.path import lexists
from pathlib import Path
from typing import Any, Final

from dsh.base.errors import DshError
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.home import resolve_dsh_home

__all__ = ["STORES", "EarlyStores"]

_CREDENTIALS: Final = "dsh.state.credentials.local"
_SETTINGS: Final = "dsh.state.settings.file"

STORES: Final = frozenset((_CREDENTIALS, _SETTINGS))
"""The plugins whose documents are read here."""


class EarlyStores:
    """The environment, with what the store and the settings of a profile say.

    Documents are read when something is first asked that only they know.

    Args:
        environment: The variables of this launch.
        configs: The config of each enabled row whose plugin is one of `STORES`.
        home_path: Makes paths in the home folder.
    """

    def __init__(
        self,
        environment: LaunchEnvironment,
        configs: Mapping[str, Mapping[str, Any]],
        home_path: Callable[..., str],
    ) -> None:
        self._environment, self._configs, self._home_path = environment, configs, home_path

    def value(self, name: str) -> str | None:
        """Return a variable of the environment."""
        return self._environment.value(name)

    def credential(self, name: str) -> str | None:
        """Return the key that a request would find.

        Raises:
            DshError: the store cannot be used.
        """
        inherited = self._environment.get_from(name, ["process"])
        if (inherited is not None and inherited.value) or _CREDENTIALS not in self._configs:
            return self._environment.value(name)
        from dsh.state.credentials.document import CredentialsDocument
        from dsh.state.credentials.layers import resolve_in

        stored = CredentialsDocument(self._path(_CREDENTIALS, ".credentials.yaml")).peek()
        found = resolve_in(self._environment, stored.refs, name)
        return None if found is None else found.value

    def section(self, ns: str) -> Mapping[str, Any]:
        """Return the user's section; none where the document cannot be read, which boot tells."""
        if _SETTINGS not in self._configs:
            return {}
        path = self._path(_SETTINGS, "settings.yaml")
        if not lexists(path):
            return {}
        from dsh.state.documents import DocumentFile

        try:
            section = DocumentFile(path, what="settings document", lock_s=0).read().get(ns)
        except DshError:
            return {}
        return section if isinstance(section, dict) else {}

    def _path(self, plugin: str, name: str) -> Path:
        config = self._configs[plugin]
        path, home = config.get("path"), config.get("dshHome")
        if isinstance(path, str):
            return Path(path).expanduser()
        if isinstance(home, str):
            return resolve_dsh_home(home) / name
        return Path(self._home_path(name))
