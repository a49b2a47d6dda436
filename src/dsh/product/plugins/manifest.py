"""A profile's manifest: which packages it depends on, and which bundles it lists."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from dsh.base.files import write_atomic
from dsh.loader.errors import ConfigFileError
from dsh.loader.profile import manifest_path, read_manifest
from dsh.loader.yaml import read_text


class Manifest:
    """A manifest in memory; `save` writes it back as it was formatted.

    Attributes:
        path: The file.
        dependencies: Packages, as they were asked for, by name.
        bundles: Bundles, in the order in which they apply.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = read_manifest(path)
        self._text = read_text(path, what="profile manifest")
        self.dependencies = dict(self._section(self._data.get("dependencies"), "dependencies"))
        for name, spec in self.dependencies.items():
            if not isinstance(spec, str):
                self._refuse(f"dependencies: {name!r} must be a text")
        self.bundles = list(self._listed())

    @property
    def is_foreign(self) -> bool:
        """Whether another package manager made it, so that it may name packages of its own."""
        return self.path.name == "package.json"

    def save(self) -> bool:
        """Write the manifest if anything in it changed; readers see the old or the new one.

        Returns:
            Whether it was written.

        Raises:
            OSError: it cannot be written; the old one is still there.
        """
        data = dict(self._data)
        if self.dependencies or "dependencies" in data:
            data["dependencies"] = self.dependencies
        if self.bundles != self._listed():
            own = dict(self._section(data.get("dsh"), "dsh"))
            profile = dict(self._section(own.get("profile"), "dsh.profile"))
            data["dsh"] = {**own, "profile": {**profile, "bundles": self.bundles}}
        if data == self._data and list(self.dependencies) == list(data.get("dependencies", ())):
            return False
        write_atomic(self.path, self._formatted(data).encode())
        return True

    def _formatted(self, data: dict[str, Any]) -> str:
        """Return JSON with the indentation and the end that the file has."""
        indent = re.search(r"\n([ \t]+)\S", self._text)
        text = json.dumps(data, indent=indent[1] if indent else None, ensure_ascii=False)
        return text + ("\n" if self._text.endswith("\n") else "")

    def _listed(self) -> list[str]:
        own = self._section(self._data.get("dsh"), "dsh")
        profile = self._section(own.get("profile"), "dsh.profile")
        bundles = profile.get("bundles")
        if bundles is None:
            return []
        if not isinstance(bundles, list) or not all(isinstance(each, str) for each in bundles):
            self._refuse("dsh.profile.bundles must be a list of names")
        return list(bundles)

    def _section(self, value: Any, name: str) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._refuse(f"{name} must be an object")
        return dict(value)

    def _refuse(self, problem: str) -> None:
        raise ConfigFileError("validate", str(self.path), problem, what="profile manifest")


def open_manifest(folder: Path) -> Manifest:
    """Read a profile's manifest.

    Raises:
        ConfigFileError: there is none, or it cannot be used.
    """
    return Manifest(manifest_path(folder) or folder / "profile.json")


def reconciled(
    bundles: Iterable[str], *, managed: Collection[str], declared: Iterable[str]
) -> list[str]:
    """Return the bundles that a profile lists after its packages changed.

    Args:
        bundles: What it listed.
        managed: Those that packages brought; an entry of them goes when nothing declares it.
        declared: What packages declare now, in the order in which new ones are appended.
    """
    now = list(dict.fromkeys(declared))
    kept = [each for each in bundles if each not in managed or each in now]
    return kept + [each for each in now if each not in kept]
