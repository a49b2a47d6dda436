"""What is installed in a site folder, and whether this dsh can use it.

Only metadata and data files are read; nothing of a package is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from dsh.base.errors import message_of
from dsh.loader.api import UnsuitableApi, api_allows, declared_api, package_folders
from dsh.loader.bundle import (
    ENTRY_POINTS,
    bundle_file,
    declared_points,
    distribution_name,
    read_bundle,
    shipped_bundles,
)
from dsh.loader.errors import LoaderError
from dsh.loader.resolve import ENTRY_POINTS as PLUGIN_POINTS
from dsh.product.plugins.specs import normalised


class InstalledPlugin(NamedTuple):
    """One distribution in a site folder."""

    name: str
    """As it calls itself."""
    version: str
    bundles: tuple[str, ...]
    """Bundles that it declares, as profiles list them."""
    plugins: tuple[str, ...]
    """Names that rows may use for its plugins."""
    api: str | None
    """The range of dsh's plugin API that it declares, when it does."""
    problems: tuple[str, ...]
    """Why this dsh cannot use it, or a part of it; empty when it can."""

    @property
    def key(self) -> str:
        """Its name in the one form that compares equal."""
        return normalised(self.name)

    @property
    def is_plugin(self) -> bool:
        """Whether it says that it is made for dsh; other packages are only needed by some."""
        return bool(self.bundles or self.plugins or self.api)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems


def installed_plugins(site: Path) -> list[InstalledPlugin]:
    """Return the distributions in a site folder, by name; none when there is no such folder.

    Args:
        site: The folder ``site`` of a profile.
    """
    found = [each for each in metadata.distributions(path=[str(site)]) if _is_named(each)]
    owners: dict[str, list[str]] = {}
    for each in found:
        for point in _promises(each):
            owners.setdefault(point, []).append(each.name)
    shelf = _Shelf(site, owners, _shared_files(found))
    return sorted((shelf.look_at(each) for each in found), key=lambda each: each.key)


class _Shelf:
    """A site folder, with what each of its distributions promises."""

    def __init__(
        self, site: Path, owners: dict[str, list[str]], shared: dict[str, list[str]]
    ) -> None:
        self._site = str(site)
        self._owners = owners
        self._shared = shared
        self._before = own_places(site)

    def look_at(self, distribution: metadata.Distribution) -> InstalledPlugin:
        bundles = declared_points(distribution, ENTRY_POINTS)
        plugins = declared_points(distribution, PLUGIN_POINTS)
        packages = sorted({_top(each) for each in (*bundles.values(), *plugins.values())})
        api, problems = self._api(distribution, packages)
        problems += self._names(distribution)
        problems += [
            f"its file {file!r} is one of {' and of '.join(owners)}, and only one of them is there"
            for file, owners in self._shared.items()
            if distribution.name in owners
        ]
        for package in packages:
            problems += self._package(package)
        for name, declared in bundles.items():
            problems += self._bundle(name, declared)
        return InstalledPlugin(
            distribution.name,
            distribution_version(distribution),
            tuple(bundles),
            tuple(plugins),
            api,
            tuple(dict.fromkeys(problems)),
        )

    def _api(
        self, distribution: metadata.Distribution, packages: Sequence[str]
    ) -> tuple[str | None, list[str]]:
        """Return the first range that its packages declare, and what is wrong with any."""
        ranges: list[str] = []
        problems: list[str] = []
        for package in dict.fromkeys((*packages, *_top_packages(distribution))):
            for folder in package_folders(package, [self._site]):
                try:
                    wanted = declared_api(folder)
                    ranges += [wanted] if wanted is not None else []
                    if wanted is not None and not api_allows(wanted):
                        problems.append(message_of(UnsuitableApi(package, wanted)))
                except LoaderError as error:
                    problems.append(message_of(error))
        return (ranges[0] if ranges else None), problems

    def _names(self, distribution: metadata.Distribution) -> list[str]:
        if distribution.name == "dsh":
            return ["it is dsh itself, which a profile must not hold a copy of"]
        return [
            f"{point} is declared by {' and '.join(sorted(self._owners[point]))}, so that neither "
            "is meant"
            for point in _promises(distribution)
            if len(self._owners[point]) > 1
        ]

    def _package(self, package: str) -> list[str]:
        if not package.isidentifier():
            return [f"it promises {package!r}, which is no package"]
        hiding = PathFinder.find_spec(package, self._before)
        if package in sys.stdlib_module_names or (hiding is not None and hiding.origin is not None):
            return [f"its package {package!r} is hidden by one of that name that comes first"]
        try:
            spec = PathFinder.find_spec(package, [self._site])
        except (ImportError, ValueError):
            spec = None
        return [] if spec is not None else [f"it promises a package {package!r} and has none"]

    def _bundle(self, name: str, declared: str) -> list[str]:
        if (shipped_bundles() / f"{name}.yml").is_file():
            return [f"its bundle {name!r} has the name of one that comes with dsh"]
        try:
            read_bundle(bundle_file(declared, name, [self._site]), name, shipped=False)
        except LoaderError as error:
            return [message_of(error)]
        return []


def distribution_version(distribution: metadata.Distribution) -> str:
    """Return a distribution's version; empty when its metadata has none."""
    return str((distribution.metadata.get_all("Version") or [""])[0])


def own_places(site: Path | None = None) -> list[str]:
    """Return where imports look before they look into a site folder, but the working folder."""
    here = str(Path.cwd())
    return [each for each in sys.path if each not in {"", here, str(site)}]


def _top(declared: str) -> str:
    """Return the top-level package that an entry point's value begins with."""
    return declared.partition(":")[0].partition(".")[0].strip()


def _shared_files(found: Sequence[metadata.Distribution]) -> dict[str, list[str]]:
    """Return the first file of each plugin's package that several distributions have."""
    packages = {
        _top(value)
        for each in found
        for group in (ENTRY_POINTS, PLUGIN_POINTS)
        for value in declared_points(each, group).values()
    }
    owners: dict[str, list[str]] = {}
    for each in found:
        for path in _files(each):
            if path.parts[:1] and path.parts[0].removesuffix(".py") in packages:
                owners.setdefault(str(path), []).append(each.name)
    first: dict[str, str] = {}
    for file in sorted(owners):
        if len(owners[file]) > 1:
            first.setdefault(file.partition("/")[0], file)
    return {file: sorted(owners[file]) for file in first.values()}


def _files(distribution: metadata.Distribution) -> Sequence[metadata.PackagePath]:
    try:
        return distribution.files or ()
    except (OSError, ValueError):
        return ()


def _is_named(distribution: metadata.Distribution) -> bool:
    return distribution_name(distribution) is not None


def _promises(distribution: metadata.Distribution) -> Iterator[str]:
    for kind, group in (("bundle", ENTRY_POINTS), ("plugin", PLUGIN_POINTS)):
        for name in declared_points(distribution, group):
            yield f"{kind} {name!r}"


def _top_packages(distribution: metadata.Distribution) -> list[str]:
    """Return the packages whose declaration is a file of the distribution."""
    files = _files(distribution)
    return [each.parts[0] for each in files if len(each.parts) == 2 and each.name == "dsh.toml"]
