"""Looks at profiles without mounting them: files, bundles, patches, plugins, upgrades."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.base.errors import DshError
from dsh.loader.aliases import ALIASES, canonical
from dsh.loader.api import API_VERSION, api_allows
from dsh.loader.profile import TEMPLATES, list_profiles
from dsh.product.doctor.findings import Case, Finding

if TYPE_CHECKING:
    from dsh.loader.compose import Composition


def look_at_profiles(case: Case) -> Iterator[Finding]:
    """Say of each profile on disk whether it composes; templates are made at their first start."""
    for name in list_profiles(case.home):
        folder = case.home / "profiles" / name
        if folder.is_dir() and name != case.profile:
            yield from _compose(case, name)
    waiting = [name for name in TEMPLATES if not (case.home / "profiles" / name).is_dir()]
    if waiting and case.profile is None:
        yield Finding("ok", "profiles", f"made at their first start: {', '.join(waiting)}")


def _compose(case: Case, name: str) -> Iterator[Finding]:
    from dsh.loader.compose import compose_profile

    topic = f"profile {name}"
    try:
        composition = compose_profile(name, case.home)
    except DshError as error:
        yield refused(topic, error)
        return
    yield Finding("ok", topic, _shape(composition))
    yield from skipped(topic, composition)
    yield from look_at_site(topic, case.home / "profiles" / name)
    yield from upgrade_of(topic, composition)


def refused(topic: str, error: DshError) -> Finding:
    """Return the finding that a profile does not compose."""
    text = str(error)
    if error.code == "PROFILE_MISSING":
        remedy = "dsh profile list shows those that exist; dsh profile new <name> makes one"
    elif error.code in {"BUNDLE", "PLUGIN_API"}:
        remedy = "install what is missing by dsh plugin, or take the bundle out of the profile"
    else:
        remedy = "correct the place that the text names"
    return Finding("error", topic, text, remedy=remedy)


def skipped(topic: str, composition: Composition) -> Iterator[Finding]:
    """Yield a finding for each patch that does nothing."""
    for warning in composition.warnings:
        remedy = "correct the id; dsh --profile <name> --dump-config lists the rows"
        yield Finding("warning", topic, warning, remedy=remedy)


def composed(topic: str, composition: Composition) -> Finding:
    """Return the finding that a profile composes."""
    return Finding("ok", topic, _shape(composition))


def _shape(composition: Composition) -> str:
    bundles = ", ".join(composition.profile.bundles) or "no bundles"
    count = len(composition.rows)
    return f"{count} {'row' if count == 1 else 'rows'} from {bundles}"


def look_at_site(topic: str, folder: Path) -> Iterator[Finding]:
    """Say which plugins a profile has installed, and whether they fit this dsh."""
    if not (folder / "site").is_dir():
        return
    from dsh.product.plugins.installed import installed_plugins

    for plugin in installed_plugins(folder / "site"):
        if not plugin.is_plugin and plugin.ok:
            continue
        title = f"plugin {plugin.name} {plugin.version}"
        for problem in plugin.problems:
            remedy = f"dsh plugin --profile {folder.name} update {plugin.name}, or remove it"
            # Where the profile needs it, it does not compose, which is told as an error.
            yield Finding("warning", topic, f"{title}: {problem}", remedy=remedy)
        if plugin.ok:
            wanted = f"for dsh API {plugin.api}" if plugin.api else "for any dsh API"
            yield Finding("ok", topic, f"{title}, {wanted}")
            yield from _ending(title, plugin.api)


def _ending(title: str, wanted: str | None) -> Iterator[Finding]:
    """Yield a finding when a plugin's range leaves out the next major version of the API."""
    following = int(API_VERSION.partition(".")[0]) + 1
    if wanted is not None and not api_allows(wanted, f"{following}.0"):
        what = f"{title} is not made for dsh API {following}"
        remedy = "look for a newer version of it before you upgrade dsh"
        yield Finding("note", "upgrade", what, remedy=remedy)


def upgrade_of(topic: str, composition: Composition) -> Iterator[Finding]:
    """Yield what an upgrade of dsh would leave as it is, or could not serve."""
    profile = composition.profile
    template = TEMPLATES.get(profile.name)
    if template is not None and profile.bundles != template:
        what = (
            f"{topic} lists {', '.join(profile.bundles) or 'no bundles'}, its template "
            f"{', '.join(template)}: an upgrade does not change the list"
        )
        yield Finding("note", "upgrade", what, remedy="compare both lists after an upgrade")
    for row in _all_rows(composition.rows):
        name = str(row.get("name"))
        if name.startswith("@") and canonical(name) == name:
            what = f'row "{row.get("id")}" of {topic} names {name!r}, which this dsh does not serve'
            yield Finding("warning", "upgrade", what, remedy=_instead(name))


def _instead(name: str) -> str:
    from dsh.base.text import nearest

    near = nearest(name, sorted(ALIASES))
    hint = f"did you mean {near!r}? else " if near else ""
    return f"{hint}remove the row, or set disabled: true on it"


def _all_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        yield row
        inner = row.get("config")
        if row.get("group") and isinstance(inner, list):
            yield from _all_rows(each for each in inner if isinstance(each, dict))
