"""Compose a profile: layers of patches, in order, to the rows that boot mounts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dsh.loader.bundle import Bundle, check_patches, load_bundle
from dsh.loader.dump import dump_rows
from dsh.loader.errors import ConfigFileError, PatchError
from dsh.loader.layers import (
    Layer,
    Provenance,
    apply_layers,
    field_origins,
    without_ids,
)
from dsh.loader.profile import PATCH_FILE, Profile, open_profile
from dsh.loader.rows import Row, check_rows, holds_rows
from dsh.loader.yaml import load_yaml, read_text, read_yaml

__all__ = [
    "Composition",
    "Layer",
    "Provenance",
    "UserFile",
    "apply_layers",
    "compose_profile",
    "read_overlay",
]


class UserFile(NamedTuple):
    """A patch file that the user may edit while the profile runs."""

    path: Path
    text: str | None
    """What it said when it was read; None when there was no such file."""
    patches: list[Row] | None

    @property
    def layer(self) -> Layer | None:
        """Its patches; None when there is no such file."""
        return None if self.patches is None else Layer(str(self.path), self.patches)


class Composition(NamedTuple):
    """A composed profile: what boot mounts and what a dump shows."""

    profile: Profile
    bundles: tuple[Bundle, ...]
    rows: list[Row]
    """Each with an id, nested ones too."""
    provenance: list[Provenance]
    warnings: list[str]
    """A sentence for each patch that was skipped, with its layer."""
    lower: tuple[Layer, ...] = ()
    """The bundles' patches."""
    files: tuple[UserFile, ...] = ()
    """The user's files, in between; empty when they were left out."""
    upper: tuple[Layer, ...] = ()
    """What comes last: files of the command line, then what the launcher adds."""
    unnamed: frozenset[str] = frozenset()
    """Ids of rows that have none in their file."""

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

    @property
    def layers(self) -> list[Layer]:
        """All layers, in the order in which they apply."""
        own = [file.layer for file in self.files if file.layer is not None]
        return [*self.lower, *own, *self.upper]

    def is_shipped(self, index: int) -> bool:
        """Tell whether a top-level row comes from dsh or its user, not from a third party."""
        origin = self.provenance[index].origin
        return all(each.shipped for each in self.bundles if each.name == origin)

    def dump(self) -> str:
        """Return the rows as YAML, with a comment before each run of equal provenance."""
        rows = without_ids(self.rows, self.unnamed)
        return dump_rows(rows, [str(each) for each in self.provenance])

    def field_origins(self, id: str) -> dict[str, str]:
        """Tell which layer set each field of a row; see `dsh.loader.layers.field_origins`."""
        return field_origins(self.layers, id)

    def with_overlays(self, overlays: Sequence[Layer]) -> Composition:
        """Return this composition with more layers on top; no file is read again.

        Raises:
            PatchError: the rows do not make a tree any more.
        """
        return _applied(self._replace(upper=(*self.upper, *overlays)))

    def read_files(self) -> tuple[UserFile, ...]:
        """Read the user's files anew; one that says what it said is the same object.

        Raises:
            ConfigFileError: a file cannot be used.
        """
        return tuple(_user_file(each.path, each) for each in self.files)

    def with_files(self, files: tuple[UserFile, ...]) -> Composition:
        """Return this composition with other versions of the user's files.

        Raises:
            PatchError: the rows do not make a tree.
        """
        return _applied(self._replace(files=files))


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
    own = (profile.folder / PATCH_FILE, home / PATCH_FILE) if user_layers else ()
    given = patches if user_layers else ()
    return _applied(
        Composition(
            profile,
            bundles,
            rows=[],
            provenance=[],
            warnings=[],
            lower=tuple(Layer(each.name, each.patches) for each in bundles),
            files=tuple(_user_file(path.absolute()) for path in own),
            upper=(*(read_overlay((cwd or Path.cwd()) / each) for each in given), *overlays),
        )
    )


def _applied(composition: Composition) -> Composition:
    """Return the composition with the rows that its layers make."""
    name, layers = composition.profile.name, composition.layers
    warnings: list[str] = []
    made = apply_layers(layers, warnings.append)
    try:
        check_rows(made.rows, f"profile {name}")
    except PatchError as error:
        raise PatchError(f"[{_spoiler(layers)}] {error}") from error
    return composition._replace(
        rows=made.rows, provenance=made.provenance, warnings=warnings, unnamed=made.unnamed
    )


def _spoiler(layers: Sequence[Layer]) -> str:
    """Return the label of the first layer with which the rows are no tree."""
    for count in range(1, len(layers)):
        try:
            check_rows(apply_layers(layers[:count], lambda _: None).rows, "")
        except PatchError:
            return layers[count - 1].label
    return layers[-1].label


def read_overlay(path: Path) -> Layer:
    """Read a patch file that must exist.

    Raises:
        ConfigFileError: it is missing, unreadable, not YAML, or not a list of patches.
    """
    path, what = path.absolute(), "overlay"
    try:
        data = read_yaml(path, what=what, pipe=True)
    except FileNotFoundError as error:
        raise ConfigFileError("read", str(path), "no such file", what=what) from error
    return Layer(str(path), _patches(data, path, what))


def _user_file(path: Path, known: UserFile | None = None) -> UserFile:
    """Read a user's patch file, which may be absent; what is known of it is not parsed again."""
    what = "patches"
    text: str | None
    try:
        text = read_text(path, what=what)
    except FileNotFoundError:
        text = None
    if known is not None and text == known.text:
        return known
    if text is None:
        return UserFile(path, None, None)
    return UserFile(path, text, _patches(load_yaml(text, str(path), what=what), path, what))


def _patches(data: object, path: Path, what: str) -> list[Row]:
    return [_anchored(each, path.parent) for each in check_patches(data, path, what)]


def _anchored(row: Row, folder: Path) -> Row:
    """Return a row or patch whose relative plugin files are beside its own file."""
    anchored = dict(row)
    name = row.get("name")
    if isinstance(name, str) and name.startswith(("./", "../")):
        anchored["name"] = os.path.normpath(folder / name)
    for key in ("insert", "config"):
        rows = row.get(key)
        if isinstance(rows, list) and (key == "insert" or holds_rows(row)):
            anchored[key] = [
                _anchored(each, folder) if isinstance(each, dict) else each for each in rows
            ]
    return anchored
