"""Makes a new site folder: pip decides what belongs in it, fetches wheels, unpacks them.

Pip looks at the environment of dsh when it decides, so that what dsh has already is not fetched
again, and may not choose other versions of it. The wheels stay in the site, so that the next
change needs nothing from outside but what it adds.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from dsh.loader.bundle import distribution_name
from dsh.product.plugins.errors import BuildRefused, PackageRefused
from dsh.product.plugins.installed import distribution_version, own_places
from dsh.product.plugins.pip import Pip
from dsh.product.plugins.specs import (
    Spec,
    bare_address,
    normalised,
    options_of,
    wheel_name,
    wheel_version,
)

_OWN: Final = ".dsh"
_WHEELS: Final = "wheels"
_RECORD: Final = "site.json"
_VERSION: Final = re.compile(
    r"(?:\d+!)?\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9.]+)?",
    re.IGNORECASE,
)
_RESOLVING_ONLY: Final = frozenset(("--upgrade", "-U"))


class Stock(NamedTuple):
    """The wheels of a site, and for whom they were fetched."""

    folder: Path
    wheels: Mapping[str, str]
    """File of each distribution, by its normalised name."""
    roots: Mapping[str, str]
    """What was asked for, as manifests keep it, by normalised name."""

    def kept(self, name: str, recorded: str) -> Spec | None:
        """Return a dependency as the wheel that is here; None when another one is wanted.

        Args:
            name: The dependency.
            recorded: What the manifest keeps of it.
        """
        key = normalised(name)
        if key not in self.wheels or self.roots.get(key) != recorded:
            return None
        url = (self.folder / self.wheels[key]).as_uri()
        extras, marker = options_of(recorded)
        requirement = f"{key}{extras} @ {url}" + (f" ; {marker}" if marker else "")
        return Spec(f"{name}: {recorded}", key, requirement, recorded)


class Wanted(NamedTuple):
    """What a site is to hold."""

    fresh: Sequence[Spec]
    """Packages that are looked for, or built, anew."""
    kept: Sequence[Spec]
    """Packages that stay as they are, from `Stock.kept`."""
    options: Sequence[str] = ()
    """For pip, verbatim."""
    allow_build: bool = False


def read_stock(site: Path) -> Stock:
    """Return the wheels of a site; none when it was made for another Python, or by others."""
    folder = site.resolve() / _OWN / _WHEELS
    wheels: dict[str, str] = {}
    try:
        record = json.loads((site / _OWN / _RECORD).read_text("utf-8"))
        roots = {str(name): str(spec) for name, spec in record["roots"].items()}
        if record["python"] == _python():
            wheels = {wheel_name(each.name): each.name for each in folder.glob("*.whl")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Stock(folder, {}, {})
    return Stock(folder, wheels, roots)


def check_sources(specs: Sequence[Spec], *, allow_build: bool) -> None:
    """Refuse packages whose wheel has yet to be made, unless that is allowed.

    Raises:
        BuildRefused: names the first.
    """
    for spec in specs:
        if spec.source and not allow_build:
            raise BuildRefused(spec.text, spec.source)


def build_site(folder: Path, wanted: Wanted, stock: Stock, pip: Pip | None) -> dict[str, str]:
    """Fill an empty folder with packages and what they need beyond the installation of dsh.

    Args:
        folder: Where; may be left in any state by a failure.
        wanted: Which.
        stock: The site before this one.
        pip: Makes the decisions and unpacks; None when nothing is wanted.

    Returns:
        What manifests keep of each package that was asked for, by the name that it has.

    Raises:
        PipFailed: pip has told why.
        PackageRefused: a package is one that the installation has, or would bring dsh itself.
    """
    wheels = folder / _OWN / _WHEELS
    wheels.mkdir(parents=True)
    named: dict[str, str] = {}
    if pip is not None:
        found = _resolve(folder, wanted, stock, pip)
        named = _named([*wanted.fresh, *wanted.kept], found)
        _fetch(wheels, wanted, found, stock, pip)
        _unpack(folder, wheels, pip)
    record = {
        "python": _python(),
        "roots": {normalised(name): spec for name, spec in named.items()},
    }
    (folder / _OWN / _RECORD).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    return named


def _unpack(folder: Path, wheels: Path, pip: Pip) -> None:
    files = sorted(str(each) for each in wheels.iterdir())
    if files:
        pip.run(
            *("install", "--quiet", "--no-deps", "--no-index", "--no-warn-script-location"),
            *("--target", str(folder), *files),
        )


class _Found(NamedTuple):
    """One package that pip decided on."""

    name: str
    version: str
    requirement: str
    address: str
    """Where it comes from, when it was asked for by that; else empty."""
    wheel: Path | None
    """Its wheel, when that is a file here already."""

    @property
    def key(self) -> str:
        return normalised(self.name)


def _resolve(folder: Path, wanted: Wanted, stock: Stock, pip: Pip) -> list[_Found]:
    own = folder / _OWN
    constraints, report = own / "constraints.txt", own / "report.json"
    constraints.write_text("".join(f"{each}\n" for each in installation_pins()), "utf-8")
    pip.run(
        *("install", "--dry-run", "--report", str(report), "-c", str(constraints)),
        *_sources(wanted, stock),
        *(each.requirement for each in (*wanted.fresh, *wanted.kept)),
        *wanted.options,
        hushed=True,
    )
    data = json.loads(report.read_text("utf-8"))
    constraints.unlink()
    report.unlink()
    return [_found(each) for each in data["install"]]


def _found(item: Mapping[str, Any]) -> _Found:
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    origin = item["download_info"]
    url = origin["url"]
    place = bare_address(url)
    here = url.startswith("file:") and place.endswith(".whl")
    wheel = Path(place.removeprefix("file://")) if here else None
    if not item.get("is_direct"):
        return _Found(name, version, f"{name}=={version}", "", wheel)
    if (repository := origin.get("vcs_info")) is not None:
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return _Found(name, version, f"{name} @ {url}", place, wheel)


def _sources(wanted: Wanted, stock: Stock) -> Iterator[str]:
    if stock.wheels:
        yield from ("--find-links", str(stock.folder))
        if not wanted.fresh:
            # Everything is here: the outside is not asked.
            yield "--no-index"


def _fetch(wheels: Path, wanted: Wanted, found: Sequence[_Found], stock: Stock, pip: Pip) -> None:
    """Gather a wheel of each package: files are copied, pip fetches or builds others."""
    fresh = {each.address: each.requirement for each in wanted.fresh if each.address}
    missing: list[str] = []
    for each in found:
        file = stock.wheels.get(each.key, "")
        if each.wheel is not None:
            shutil.copyfile(each.wheel, wheels / each.wheel.name)
        elif each.address in fresh:
            # By name and address pip would take a wheel that it built there before.
            missing.append(fresh[each.address])
        elif file and wheel_version(file) == each.version.replace("-", "_"):
            shutil.copyfile(stock.folder / file, wheels / file)
        else:
            missing.append(each.requirement)
    if missing:
        options = [each for each in wanted.options if each not in _RESOLVING_ONLY]
        pip.run(
            *("wheel", "--no-deps", "--wheel-dir", str(wheels)),
            *(*_sources(wanted, stock), *missing, *options),
        )


def _named(roots: Sequence[Spec], found: Sequence[_Found]) -> dict[str, str]:
    """Return what manifests keep of each root, by its name, in the order of the roots."""
    names = {each.key: each for each in found}
    addresses = {each.address: each for each in found if each.address}
    pinned = {normalised(pin.partition("==")[0]): pin for pin in installation_pins()}
    problems: list[str] = []
    named: dict[str, str] = {}
    for spec in roots:
        item = names.get(spec.name or "") or addresses.get(spec.address)
        if item is not None:
            named[item.name] = spec.recorded
        elif spec.name in pinned:
            problems.append(f"{pinned[spec.name]} is part of the installation of dsh already")
        elif spec.name is not None:
            # Its marker says that it is not for this machine; it is wanted all the same.
            named[spec.name] = spec.recorded
        else:
            problems.append(f"{spec.text!r} does not tell its name; write <name> @ <address>")
    problems += [
        f"{each.name} {each.version} would take the place of dsh's own"
        for each in found
        if each.key in {"dsh", *pinned}
    ]
    if problems:
        raise PackageRefused(problems)
    return named


def installation_pins() -> list[str]:
    """Return ``name==version`` of everything that is installed where dsh is."""
    pins: dict[str, str] = {}
    for distribution in metadata.distributions(path=own_places()):
        name = distribution_name(distribution)
        version = distribution_version(distribution) if name else ""
        if name and _VERSION.fullmatch(version):
            pins.setdefault(normalised(name), f"{name}=={version}")
    return sorted(pins.values())


def _python() -> str:
    """Return which Python wheels are good for."""
    return f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
