"""Bundles: named sets of patches that a profile lists, shipped or installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsh.base.text import did_you_mean
from dsh.loader.api import UnsuitableApi, check_api, package_folders
from dsh.loader.errors import BundleError, ConfigFileError
from dsh.loader.rows import Row
from dsh.loader.yaml import read_yaml

if TYPE_CHECKING:
    from importlib.metadata import Distribution

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


def bundle_file(declared: str, bundle: str, places: Sequence[str]) -> Path:
    """Return the file that an entry point's value names; nothing of the package is imported.

    Args:
        declared: ``package:file.yml``; the file is inside the package's folder.
        bundle: The bundle's name, for errors.
        places: Where packages are.

    Raises:
        BundleError: the value has another form, leads out of the package, or there is no such
            package.
    """
    package, _, file = (part.strip() for part in declared.partition(":"))
    if not file or not all(part.isidentifier() for part in package.split(".")):
        problem = f"its {ENTRY_POINTS} entry point must be package:file.yml, got {declared!r}"
        raise BundleError(f'bundle "{bundle}": {problem}')
    inner = PurePosixPath(file)
    if inner.is_absolute() or ".." in inner.parts or "\\" in file or not file.isprintable():
        raise BundleError(f'bundle "{bundle}": its file {file!r} leads out of its package')
    folders = package_folders(package, places)
    if not folders:
        raise BundleError(f'bundle "{bundle}": there is no package {package!r}')
    path = next((each / file for each in folders if (each / file).exists()), folders[0] / file)
    if not any(path.resolve().is_relative_to(each.resolve()) for each in folders):
        raise BundleError(f'bundle "{bundle}": its file {file!r} leads out of its package')
    return path


def distribution_name(distribution: Distribution) -> str | None:
    """Return how an installed distribution calls itself; None when its metadata is unusable."""
    try:
        names = distribution.metadata.get_all("Name")
    except (OSError, ValueError, TypeError):
        return None
    return str(names[0]) if names else None


def declared_points(distribution: Distribution, group: str) -> dict[str, str]:
    """Return the entry points of one group, value by name; none when the metadata is unusable."""
    try:
        points = distribution.entry_points.select(group=group)
        return {point.name: point.value for point in points}
    except (OSError, ValueError, TypeError):
        # Metadata is somebody else's file; what is wrong with it must not stop other bundles.
        return {}


def _installed(name: str, profile: str, profile_dir: Path) -> Path:
    """Find the file that an installed distribution declares; nothing of it is imported."""
    import sys
    from importlib import metadata

    site = profile_dir / "site"
    places = [*sys.path, str(site)]
    remedy = f"run dsh plugin --profile {profile} install"
    bare = False
    declared: str | None = None
    for distribution in metadata.distributions(path=places):
        values = declared_points(distribution, ENTRY_POINTS)
        if name in values:
            declared = values[name]
            break
        if distribution_name(distribution) == name:
            declared = declared or next(iter(values.values()), None)
            bare = True
    if declared is not None:
        try:
            check_api(declared, places)
            return bundle_file(declared, name, places)
        except UnsuitableApi as error:
            raise BundleError(f'profile bundle "{name}": {error}', code=error.code) from error
        except BundleError as error:
            raise BundleError(f"profile {error}; {remedy}") from error
    if bare:
        raise BundleError(f'profile bundle "{name}" declares no {ENTRY_POINTS} entry point')
    known = [path.stem for path in sorted(shipped_bundles().glob("*.yml"))]
    raise BundleError(
        f'cannot resolve profile bundle "{name}"{did_you_mean(name, known)}: neither the '
        f"installation nor {site} has it; {remedy}"
    )
