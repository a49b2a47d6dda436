"""Compose a profile: layers of patches, in order, to the rows that boot mounts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dsh.loader.aliases import GROUP, canonical, same_plugin
from dsh.loader.bundle import Bundle, check_patches, load_bundle
from dsh.loader.dump import dump_rows
from dsh.loader.errors import ConfigFileError, PatchError
from dsh.loader.expr import detach
from dsh.loader.patch import PatchRun
from dsh.loader.profile import PATCH_FILE, Profile, open_profile
from dsh.loader.rows import Row, check_rows
from dsh.loader.yaml import read_yaml


class Layer(NamedTuple):
    """Patches with the name that dumps and warnings give them."""

    label: str
    patches: list[Row]


class Provenance(NamedTuple):
    """Where a top-level row comes from."""

    origin: str
    """Label of the layer that inserted it."""
    patched_by: tuple[str, ...]
    """Labels of the layers that changed it since, in order."""

    def __str__(self) -> str:
        if not self.patched_by:
            return self.origin
        return f"{self.origin}, patched by {', '.join(self.patched_by)}"


class Composition(NamedTuple):
    """A composed profile: what boot mounts and what a dump shows."""

    profile: Profile
    bundles: tuple[Bundle, ...]
    rows: list[Row]
    provenance: list[Provenance]
    warnings: list[str]
    """A sentence for each patch that was skipped, with its layer."""

    @property
    def cli(self) -> str | None:
        """``module:command`` of the app's command line, from the last bundle that has one."""
        return next((each.cli for each in reversed(self.bundles) if each.cli), None)

    @property
    def oneshot(self) -> bool:
        """Whether the app does one job and exits."""
        return any(each.oneshot for each in self.bundles)

    @property
    def unavailable(self) -> str | None:
        """Why this profile cannot be booted yet, or None."""
        return next((each.unavailable for each in self.bundles if each.unavailable), None)

    def is_shipped(self, index: int) -> bool:
        """Tell whether a top-level row comes from dsh or its user, not from a third party."""
        origin = self.provenance[index].origin
        return all(each.shipped for each in self.bundles if each.name == origin)

    def dump(self) -> str:
        """Return the rows as YAML, with a comment before each run of equal provenance."""
        return dump_rows(self.rows, [str(each) for each in self.provenance])


def compose_profile(
    name: str,
    home: Path,
    *,
    patches: Sequence[str] = (),
    cwd: Path | None = None,
    user_layers: bool = True,
    overlays: Sequence[Layer] = (),
) -> Composition:
    """Read a profile's layers and apply them over an empty tree.

    Layers are the bundles in the profile's order, the profile's patch file, the home's, then
    ``patches`` in their order, then ``overlays``. A later layer wins.

    Args:
        name: The profile; a template of this name makes a missing one.
        home: The home folder.
        patches: Files given on the command line; each must exist.
        cwd: What those are relative to; the working folder when None.
        user_layers: False leaves every user's file out, unread.
        overlays: What the launcher itself adds.

    Raises:
        LoaderError: a profile, bundle or file cannot be used, or the rows do not make a tree.
    """
    profile = open_profile(name, home)
    bundles = tuple(load_bundle(each, name, profile.folder) for each in profile.bundles)
    layers = [Layer(each.name, each.patches) for each in bundles]
    if user_layers:
        for path in (profile.folder / PATCH_FILE, home / PATCH_FILE):
            layer = _user_layer(path)
            layers += [layer] if layer is not None else []
        layers += [read_overlay((cwd or Path.cwd()) / each) for each in patches]
    layers += overlays
    warnings: list[str] = []
    rows, provenance = apply_layers(layers, warnings.append)
    try:
        check_rows(rows, f"profile {name}")
    except PatchError as error:
        raise PatchError(f"[{_spoiler(layers)}] {error}") from error
    return Composition(profile, bundles, rows, provenance, warnings)


def _spoiler(layers: Sequence[Layer]) -> str:
    """Return the label of the first layer with which the rows are no tree."""
    for count in range(1, len(layers)):
        try:
            check_rows(apply_layers(layers[:count], lambda _: None)[0], "")
        except PatchError:
            return layers[count - 1].label
    return layers[-1].label


def apply_layers(
    layers: Sequence[Layer], warn: Callable[[str], None]
) -> tuple[list[Row], list[Provenance]]:
    """Apply layers in one pass and note which of them made and changed each top-level row.

    Raises:
        PatchError: a patch has a shape that no tree can take; names its layer.
    """
    run = PatchRun([], same_name=same_plugin)
    origins: list[str] = []
    changers: list[list[str]] = []
    for layer in layers:
        before: list[Row] = detach(run.rows)
        try:
            for patch in layer.patches:
                run.apply(patch, lambda text, label=layer.label: warn(f"[{label}] {text}"))  # type: ignore[misc]
        except PatchError as error:
            raise PatchError(f"[{layer.label}] {error}") from error
        for index, old in enumerate(before):
            if old != run.rows[index]:
                changers[index].append(layer.label)
        added = len(run.rows) - len(before)
        origins += [layer.label] * added
        changers += [[] for _ in range(added)]
    return run.rows, [
        Provenance(origin, tuple(changed))
        for origin, changed in zip(origins, changers, strict=True)
    ]


def read_overlay(path: Path) -> Layer:
    """Read a patch file that must exist.

    Raises:
        ConfigFileError: it is missing, unreadable, not YAML, or not a list of patches.
    """
    layer = _user_layer(path, what="overlay")
    if layer is None:
        raise ConfigFileError("read", str(path), "no such file", what="overlay")
    return layer


def _user_layer(path: Path, what: str = "patches") -> Layer | None:
    """Read a patch file; None when there is none."""
    path = path.absolute()
    try:
        data = read_yaml(path, what=what)
    except FileNotFoundError:
        return None
    return Layer(
        str(path), [_anchored(each, path.parent) for each in check_patches(data, path, what)]
    )


def _anchored(row: Row, folder: Path) -> Row:
    """Return a row or patch whose relative plugin files are beside its own file."""
    anchored = dict(row)
    name = row.get("name")
    if isinstance(name, str) and name.startswith(("./", "../")):
        anchored["name"] = os.path.normpath(folder / name)
    for key in ("insert", "config"):
        rows = row.get(key)
        if isinstance(rows, list) and (key == "insert" or _holds_rows(row)):
            anchored[key] = [
                _anchored(each, folder) if isinstance(each, dict) else each for each in rows
            ]
    return anchored


def _holds_rows(row: Row) -> bool:
    return bool(row.get("group")) or canonical(str(row.get("name"))) == GROUP
