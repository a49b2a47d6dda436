"""The verbs that change a profile's packages: each makes a new site, then lets it take over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NamedTuple

from dsh.base.text import did_you_mean
from dsh.loader.bundle import shipped_bundles
from dsh.loader.home import display_home
from dsh.loader.profile import (
    DEFAULT_BUNDLES,
    TEMPLATES,
    check_profile_name,
    init_profile,
    manifest_path,
    open_profile,
)
from dsh.loader.say import say, write
from dsh.product.plugins.build import Stock, Wanted, build_site, check_sources, read_stock
from dsh.product.plugins.errors import PackageRefused, PluginError, SpecError
from dsh.product.plugins.installed import InstalledPlugin, installed_plugins
from dsh.product.plugins.manifest import Manifest, open_manifest, reconciled
from dsh.product.plugins.pip import find_pip
from dsh.product.plugins.site import Site
from dsh.product.plugins.specs import Spec, normalised, parse_spec, recorded_spec
from dsh.product.plugins.words import Words

_MAKING: Final = ("add", "install")


class Place(NamedTuple):
    """One profile, by name and folder."""

    name: str
    home: Path

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.home / "profiles" / self.name

    @property
    def shown(self) -> str:
        """Where it is, as texts say it."""
        return f"{display_home(self.home)}/profiles/{self.name}"


def change(place: Place, words: Words, cwd: Path) -> list[str]:
    """Run one of the verbs ``add``, ``remove``, ``update`` and ``install``.

    Until everything is known to be good, the profile is as it was.

    Args:
        place: The profile; ``add`` and ``install`` make a missing one.
        words: The verb, its packages and options.
        cwd: What paths are relative to.

    Returns:
        A line for each package that came, went or changed.

    Raises:
        PluginError: it is refused, or pip failed; nothing has changed.
        LoaderError: the profile's name or manifest cannot be used.
        OSError: the profile cannot be written.
    """
    fresh = [parse_spec(each, cwd) for each in words.names] if words.verb == "add" else []
    check_sources(fresh, allow_build=words.allow_build)
    _open(place, make=words.verb in _MAKING)
    site = Site(place.folder)
    with site.locked():
        manifest = open_manifest(place.folder)
        stock = read_stock(site.link)
        plan = _plan(manifest, words, fresh, stock)
        lines = _replace(place, site, manifest, plan, stock)
        site.tidy()
    return lines


def _open(place: Place, *, make: bool) -> None:
    """Check that there is such a profile, or make it."""
    check_profile_name(place.name)
    if not make:
        open_profile(place.name, place.home)
        return
    existed = manifest_path(place.folder) is not None
    bundles = TEMPLATES.get(place.name, DEFAULT_BUNDLES)
    init_profile(place.folder, place.name, bundles)
    if not existed:
        say(f"initialized profile {place.name} at {place.shown}")


class _Plan(NamedTuple):
    """What a site is to hold, and what the manifest keeps that no site can hold."""

    wanted: Wanted
    foreign: tuple[str, ...]


def _plan(manifest: Manifest, words: Words, fresh: Sequence[Spec], stock: Stock) -> _Plan:
    """Sort what the profile depends on into what is looked for and what stays."""
    named = set(_dependencies(manifest, words)) if words.verb in {"remove", "update"} else set()
    replaced = {each.name for each in fresh} | {each.recorded for each in fresh if each.address}
    looked_for, kept, foreign = list(fresh), [], []
    for name, recorded in manifest.dependencies.items():
        if normalised(name) in replaced or recorded in replaced:
            continue
        if words.verb == "remove" and name in named:
            continue
        anew = words.verb == "update" and (name in named or not named)
        stays = None if anew else stock.kept(name, recorded)
        if stays is not None:
            kept.append(stays)
        elif (spec := _recorded(manifest, name, recorded)) is not None:
            looked_for.append(spec)
        else:
            foreign.append(name)
    check_sources(looked_for, allow_build=words.allow_build)
    return _Plan(Wanted(looked_for, kept, words.options, words.allow_build), tuple(foreign))


def _dependencies(manifest: Manifest, words: Words) -> Iterator[str]:
    """Yield the dependencies that a command line names, as the manifest spells them."""
    spelled = {normalised(name): name for name in manifest.dependencies}
    for name in words.names:
        if normalised(name) not in spelled:
            near = did_you_mean(name, list(manifest.dependencies))
            has = ", ".join(manifest.dependencies) or "none"
            raise PluginError(f"{words.verb}: no dependency {name!r}{near}; there are: {has}")
        yield spelled[normalised(name)]


def _recorded(manifest: Manifest, name: str, recorded: str) -> Spec | None:
    try:
        return recorded_spec(name, recorded, manifest.path.parent)
    except SpecError as error:
        if not manifest.is_foreign:
            raise
        write(f"dsh plugin: {manifest.path.name}: left out: {error}")
        return None


def _replace(place: Place, site: Site, manifest: Manifest, plan: _Plan, stock: Stock) -> list[str]:
    """Make the new site, and let it and the manifest take over together."""
    wanted, before = plan.wanted, installed_plugins(site.link)
    needs_pip = bool(wanted.fresh or wanted.kept)
    finding = find_pip(place.shown, wanted.options, allow_build=wanted.allow_build)
    with site.staged() as folder, finding if needs_pip else nullcontext() as pip:
        named = build_site(folder, wanted, stock, pip)
        after = installed_plugins(folder)
        _check(folder, before, after, {normalised(name) for name in named}, wanted)
        added = _update(manifest, plan, named, after, _managed(manifest, stock, before))
        take_back = site.publish(folder)
        try:
            manifest.save()
        except BaseException:
            take_back()
            raise
    _tell_plain(added)
    anew = {normalised(name) for name in named} - {each.name for each in wanted.kept}
    return _differences(before, after, anew)


def _check(
    folder: Path,
    before: Sequence[InstalledPlugin],
    after: Sequence[InstalledPlugin],
    roots: set[str],
    wanted: Wanted,
) -> None:
    """Refuse packages that this dsh cannot use; of those that were there already, only tell."""
    kept = {each.name for each in wanted.kept}
    old = {(each.key, each.version) for each in before}
    refused: list[str] = []
    for each in after:
        stays = (each.key, each.version) in old and (each.key in kept or each.key not in roots)
        for problem in each.problems:
            # The folder is gone when this is read.
            text = f"{each.name} {each.version}: {problem.replace(f'{folder}/', '')}"
            if stays:
                write(f"dsh plugin: {text}")
            else:
                refused.append(text)
    if refused:
        raise PackageRefused(refused)


def _update(
    manifest: Manifest,
    plan: _Plan,
    named: Mapping[str, str],
    after: Sequence[InstalledPlugin],
    managed: set[str],
) -> list[InstalledPlugin]:
    """Bring a manifest in line with what is installed; return the dependencies that are new."""
    former = {normalised(name): name for name in manifest.dependencies}
    now = {normalised(name): (name, spec) for name, spec in named.items()}
    by_key = {each.key: each for each in after}
    dependencies = {
        name: now[key][1] if key in now else manifest.dependencies[name]
        for key, name in former.items()
        if key in now or name in plan.foreign
    }
    dependencies |= {name: spec for key, (name, spec) in now.items() if key not in former}
    roots = [normalised(name) for name in dependencies]
    manifest.bundles = reconciled(
        manifest.bundles,
        managed=managed,
        declared=[bundle for key in roots if key in by_key for bundle in by_key[key].bundles],
    )
    manifest.dependencies = dependencies
    return [by_key[key] for key in roots if key not in former and key in by_key]


def _managed(manifest: Manifest, stock: Stock, before: Sequence[InstalledPlugin]) -> set[str]:
    """Return the bundles that a profile has from its dependencies, those edited out included."""
    keys = {normalised(name) for name in manifest.dependencies} | set(stock.roots)
    brought = {bundle for each in before if each.key in keys for bundle in each.bundles}
    brought |= {each for each in manifest.bundles if normalised(each) in keys}
    return brought - {path.stem for path in shipped_bundles().glob("*.yml")}


def _tell_plain(added: Sequence[InstalledPlugin]) -> None:
    for each in added:
        if not each.bundles and not each.plugins:
            write(
                f"dsh plugin: {each.name} declares neither a bundle nor a plugin: it is installed "
                "as a plain dependency and changes no row"
            )


def _differences(
    before: Sequence[InstalledPlugin], after: Sequence[InstalledPlugin], anew: set[str]
) -> list[str]:
    old = {each.key: each for each in before}
    new = {each.key: each for each in after}
    lines = [f"removed {old[key].name} {old[key].version}" for key in old if key not in new]
    for key, each in new.items():
        if key not in old:
            lines.append(f"added {each.name} {each.version}{_brings(each)}")
        elif old[key].version != each.version:
            lines.append(f"changed {each.name} {old[key].version} to {each.version}{_brings(each)}")
        elif key in anew:
            lines.append(f"installed {each.name} {each.version} again{_brings(each)}")
    return lines or ["nothing has changed"]


def _brings(plugin: InstalledPlugin) -> str:
    parts = [f"bundle {', '.join(plugin.bundles)}"] if plugin.bundles else []
    parts += [f"plugins {', '.join(plugin.plugins)}"] if plugin.plugins else []
    return f" ({'; '.join(parts)})" if parts else ""
