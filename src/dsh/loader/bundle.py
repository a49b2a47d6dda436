"""Bundles: named sets of patches that a profile lists, shipped or installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from dsh.base.text import did_you_mean
from dsh.loader.errors import BundleError, ConfigFileError
from dsh.loader.rows import Row
from dsh.loader.yaml import read_yaml

ENTRY_POINTS: Final = "dsh.bundle"
"""Group of entry points by which a distribution declares a bundle: ``name = package:file.yml``."""

_UPSTREAM: Final = "@deepseek-ai/dsh-"
_FIELDS: Final = ("name", "cli", "oneshot", "patches", "unavailable")


class Bundle(NamedTuple):
    """One bundle, read.

    Its file is a mapping of these fields; ``patches`` has the form of a user's patch file.
    """

    name: str
    """How profiles list it and dumps call it."""
    path: Path
    patches: list[Row]
    cli: str | None = None
    """``module:command`` of the app's own command line; the last bundle that has one decides."""
    oneshot: bool = False
    """The app does one job and exits, so that a stop by a supervisor is not a success."""
    unavailable: str | None = None
    """Why a profile with this bundle cannot be booted yet; it still composes and dumps."""
    shipped: bool = True
    """Comes with dsh, so that a row of it that fails is fatal."""


def shipped_bundles() -> Path:
    """Return the folder of the bundles that come with dsh."""
    return Path(__file__).parent.parent / "product" / "bundles"


def load_bundle(name: str, profile: str, profile_dir: Path) -> Bundle:
    """Find a bundle, shipped ones first, and read it.

    Args:
        name: As the profile lists it; upstream's package names are known too.
        profile: The profile's name, for the remedy in errors.
        profile_dir: Where plugins of the profile are installed, in ``site``.

    Raises:
        BundleError: nothing of this name is installed, or it declares no bundle.
        ConfigFileError: its file cannot be used.
    """
    own = shipped_bundles() / f"{name.removeprefix(_UPSTREAM)}.yml"
    if own.stem == name.removeprefix(_UPSTREAM) and "/" not in own.stem and own.is_file():
        return read_bundle(own, own.stem, shipped=True)
    return read_bundle(_installed(name, profile, profile_dir), name, shipped=False)


def read_bundle(path: Path, name: str, *, shipped: bool) -> Bundle:
    """Read one bundle file.

    Raises:
        ConfigFileError: it is unreadable, not YAML, or not of a bundle's shape.
    """
    try:
        data = read_yaml(path, what="bundle")
    except FileNotFoundError as error:
        raise ConfigFileError("read", str(path), "no such file", what="bundle") from error
    if isinstance(data, list):
        data = {"patches": data}
    if not isinstance(data, dict):
        raise ConfigFileError("validate", str(path), "a bundle must be a mapping or a list")
    for key, kind, shown in _SHAPE:
        if data.get(key) is not None and not isinstance(data[key], kind):
            raise ConfigFileError("validate", str(path), f"{key} of a bundle must be {shown}")
    for key in data:
        if key not in _FIELDS:
            problem = f"unknown field {key!r} of a bundle{did_you_mean(key, _FIELDS)}"
            raise ConfigFileError("validate", str(path), problem)
    return Bundle(
        name=name,
        path=path,
        patches=check_patches(data.get("patches") or [], path, "bundle"),
        cli=data.get("cli"),
        oneshot=bool(data.get("oneshot")),
        unavailable=data.get("unavailable"),
        shipped=shipped,
    )


def check_patches(data: Any, path: Path, what: str) -> list[Row]:
    """Check the shape of a list of patches.

    Raises:
        ConfigFileError: it is not a list, or an element is not a mapping.
    """
    if not isinstance(data, list):
        problem = "must be a top-level YAML array of loader patch entries ([] for none)"
        raise ConfigFileError("validate", str(path), f"{what} {problem}")
    for number, patch in enumerate(data, 1):
        if not isinstance(patch, dict):
            raise ConfigFileError(
                "validate", str(path), f"{what} entry {number} in {path} must be a mapping"
            )
        rows = patch.get("insert", [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigFileError(
                "validate", str(path), f"{what} entry {number} in {path}: insert must list rows"
            )
    return data


_SHAPE: Final[tuple[tuple[str, type, str], ...]] = (
    ("name", str, "a text"),
    ("cli", str, "a text, module:command"),
    ("oneshot", bool, "true or false"),
    ("unavailable", str, "a text"),
    ("patches", list, "a list"),
)


def _installed(name: str, profile: str, profile_dir: Path) -> Path:
    """Find the file that an installed distribution declares; nothing of it is imported."""
    import sys
    from importlib import metadata
    from importlib.machinery import PathFinder

    places = [*sys.path, str(profile_dir / "site")]
    remedy = f"dsh plugin --profile {profile} install"
    for distribution in metadata.distributions(path=places):
        points = distribution.entry_points.select(group=ENTRY_POINTS)
        if distribution.metadata["Name"] != name and name not in points.names:
            continue
        for point in points:
            package, _, file = point.value.partition(":")
            spec = PathFinder.find_spec(package, places)
            if spec is None or not spec.submodule_search_locations:
                raise BundleError(f'profile bundle "{name}": no package {package!r}; run {remedy}')
            return Path(next(iter(spec.submodule_search_locations))) / file
        raise BundleError(f'profile bundle "{name}" declares no dsh.bundle entry point')
    known = [path.stem for path in sorted(shipped_bundles().glob("*.yml"))]
    raise BundleError(
        f'cannot resolve profile bundle "{name}"{did_you_mean(name, known)}: neither the '
        f"installation nor {profile_dir / 'site'} has it; run {remedy}"
    )
