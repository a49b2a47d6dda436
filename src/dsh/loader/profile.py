"""Profiles: named lists of bundles in the home folder, made from templates on first use."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh.base.text import nearest
from dsh.loader.errors import ConfigFileError, ProfileError, ProfileMissing
from dsh.loader.yaml import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

PATCH_FILE: Final = "cordis.patch.yml"
"""Name of a user's patch file, in a profile and in the home folder."""

TEMPLATES: Final[dict[str, tuple[str, ...]]] = {
    "headless": ("base", "headless"),
    "web": ("base", "web-app"),
}
"""Profiles that are made when they are first asked for, and their bundles."""

DEFAULT_BUNDLES: Final = ("base",)
"""What a profile of one's own starts with."""

_MANIFESTS: Final = ("profile.json", "package.json")
_PASSING: Final = ".tmp"
"""End of the names of folders that are being made or deleted; they begin with a dot."""
_PATCH_TEXT: Final = """\
# Patches of this profile, applied after its bundles. Each entry names a row by its id and
# replaces fields of it, or inserts rows. `dsh --profile <name> --dump-config` shows the result.
[]
"""


class Profile(NamedTuple):
    """One profile as it is on disk, or as its template says."""

    name: str
    folder: Path
    bundles: tuple[str, ...]
    notices: tuple[str, ...] = ()
    """What the user should hear about how it was found."""


def check_profile_name(name: str) -> None:
    """Refuse a name that cannot be a folder of its own.

    Raises:
        ProfileError: the name is unusable.
    """
    written = bool(name.strip()) and name.isprintable() and not {"/", "\\"} & set(name)
    if not written or name in {".", "..", "node_modules"} or _is_passing(name):
        raise ProfileError(
            f'invalid profile name "{name}"; it names a folder: no slash, no control character'
        )


def open_profile(name: str, home: Path) -> Profile:
    """Return a profile; one that a template describes is made when it is missing.

    A home that cannot be written is no failure: the template is used as it is, with a notice.

    Raises:
        ProfileError: the name is unusable.
        ProfileMissing: there is no such profile, and no template of that name.
        ConfigFileError: its manifest cannot be used.
    """
    check_profile_name(name)
    folder = home / "profiles" / name
    template = TEMPLATES.get(name)
    notices: tuple[str, ...] = ()
    if template is not None:
        try:
            init_profile(folder, name, template)
        except OSError as error:
            reason = (error.strerror or "unwritable").lower()
            notices = (f"profile {name} is used without being saved: {folder}: {reason}",)
    found = read_profile(name, home)
    if found is not None:
        return found._replace(notices=notices)
    known = list_profiles(home)
    raise ProfileMissing(name, known=known, near=nearest(name, known))


def read_profile(name: str, home: Path) -> Profile | None:
    """Return a profile as it is on disk, else as its template says; makes nothing.

    Raises:
        ProfileError: the name is unusable.
        ConfigFileError: its manifest cannot be used.
    """
    check_profile_name(name)
    folder = home / "profiles" / name
    manifest = _manifest_path(folder)
    if manifest is not None:
        return Profile(name, folder, _bundles(manifest))
    template = TEMPLATES.get(name)
    return None if template is None else Profile(name, folder, template)


def list_profiles(home: Path) -> list[str]:
    """Return the names of all profiles, templates included, sorted."""
    names = set(TEMPLATES)
    try:
        folders = list((home / "profiles").iterdir())
    except OSError:
        folders = []
    names.update(
        each.name
        for each in folders
        if not _is_passing(each.name) and _manifest_path(each) is not None
    )
    return sorted(names)


def create_profile(name: str, home: Path, bundles: Sequence[str] = DEFAULT_BUNDLES) -> Path:
    """Make a profile that does not exist yet; it appears whole or not at all.

    Args:
        name: Also that of a template, while that has no folder.
        home: The home folder.
        bundles: In the order in which they apply.

    Returns:
        Its folder.

    Raises:
        ProfileError: the name is unusable or taken, or the folder cannot be written.
        BundleError: a bundle cannot be found.
        ConfigFileError: a bundle's file cannot be used.
    """
    from shutil import rmtree

    from dsh.loader.bundle import load_bundle

    check_profile_name(name)
    folder = home / "profiles" / name
    if os.path.lexists(folder):
        raise ProfileError(f'profile "{name}" exists already: {folder}')
    for bundle in bundles:
        load_bundle(bundle, name, folder)
    passing = _passing(folder)
    try:
        init_profile(passing, name, tuple(bundles))
        # Fails if somebody else was quicker: their folder is not empty.
        passing.rename(folder)
    except OSError as error:
        rmtree(passing, ignore_errors=True)
        if folder.exists():
            raise ProfileError(f'profile "{name}" exists already: {folder}') from error
        raise ProfileError(f'profile "{name}" cannot be made: {_reason(folder, error)}') from error
    return folder


def delete_profile(name: str, home: Path) -> Path:
    """Delete a profile's folder with all that is in it; links in it are not followed.

    It vanishes in one step. A template's profile is made anew when it is next asked for.

    Returns:
        The folder that was.

    Raises:
        ProfileError: the name is unusable, its folder is no profile, or it cannot be deleted.
        ProfileMissing: there is no such profile.
    """
    from shutil import rmtree

    check_profile_name(name)
    folder = home / "profiles" / name
    if not os.path.lexists(folder):
        if name in TEMPLATES:
            raise ProfileError(f'profile "{name}" has no folder yet, so there is nothing to delete')
        known = list_profiles(home)
        raise ProfileMissing(name, known=known, near=nearest(name, known))
    if folder.is_symlink():
        raise ProfileError(f"{folder} is a link, not a profile's folder; remove the link yourself")
    if _manifest_path(folder) is None:
        names = " or ".join(_MANIFESTS)
        raise ProfileError(f"{folder} has no {names}, so it is no profile and is left alone")
    passing = _passing(folder)
    try:
        folder.rename(passing)
    except OSError as error:
        reason = _reason(folder, error)
        raise ProfileError(f'profile "{name}" cannot be deleted: {reason}') from error
    try:
        rmtree(passing)
    except OSError as error:
        reason = _reason(passing, error)
        raise ProfileError(
            f'profile "{name}" is gone, but not all of its files: {reason}; delete what is left '
            f"in {passing}"
        ) from error
    return folder


def _passing(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{os.urandom(4).hex()}{_PASSING}")


def _is_passing(name: str) -> bool:
    return name.startswith(".") and name.endswith(_PASSING)


def _reason(path: Path, error: OSError) -> str:
    return f"{error.filename or path}: {(error.strerror or str(error)).lower()}"


def init_profile(folder: Path, name: str, bundles: tuple[str, ...]) -> None:
    """Write the files that a profile lacks; what exists is never touched.

    Files appear whole and are created exclusively, so that two first runs at once agree.

    Raises:
        OSError: the folder cannot be written.
    """
    if _manifest_path(folder) is not None and (folder / PATCH_FILE).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if _manifest_path(folder) is None:
        manifest = {
            "name": f"dsh-profile-{name}",
            "private": True,
            "dependencies": {},
            "dsh": {"profile": {"bundles": list(bundles)}},
        }
        _create(folder / _MANIFESTS[0], json.dumps(manifest, indent=2) + "\n")
    _create(folder / PATCH_FILE, _PATCH_TEXT)


def _create(path: Path, text: str) -> None:
    """Create a file with its whole content, unless somebody else has."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:
        if path.exists():
            return
        # No hard links here: exclusive creation still lets one writer win.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    finally:
        temporary.unlink(missing_ok=True)


def _manifest_path(folder: Path) -> Path | None:
    for name in _MANIFESTS:
        path = folder / name
        if os.path.lexists(path):
            return path
    return None


def _bundles(path: Path) -> tuple[str, ...]:
    """Return the bundles that a manifest lists; a manifest without our section lists none."""
    data = _read_manifest(path)
    section: Any = data.get("dsh")
    for key in ("profile", "bundles"):
        if section is None:
            return ()
        if not isinstance(section, dict):
            raise ConfigFileError("validate", str(path), f"the parent of {key!r} must be an object")
        section = section.get(key)
    if section is None:
        return ()
    if not isinstance(section, list) or not all(isinstance(each, str) for each in section):
        raise ConfigFileError("validate", str(path), "dsh.profile.bundles must be a list of names")
    return tuple(section)


def _read_manifest(path: Path) -> dict[str, Any]:
    what = "profile manifest"
    try:
        text = read_text(path, what=what)
    except FileNotFoundError as error:
        raise ConfigFileError("read", str(path), "no such file", what=what) from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigFileError(
            "parse", str(path), error.msg, what=what, line=error.lineno, column=error.colno
        ) from error
    except RecursionError as error:
        raise ConfigFileError("parse", str(path), "nested too deeply", what=what) from error
    if not isinstance(data, dict):
        raise ConfigFileError("validate", str(path), "a profile manifest must be a JSON object")
    return data


def manifest_path(folder: Path) -> Path | None:
    """Return a profile's manifest, ours before a ``package.json``; None when it has none."""
    return _manifest_path(folder)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the fields of a profile's manifest.

    Raises:
        ConfigFileError: it cannot be read or is no JSON object.
    """
    return _read_manifest(path)
