"""The verbs of ``dsh plugin``: what they leave in the site, the manifest and the output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plugin_support import PLUGIN, RAISES, SIDE_EFFECT, User, bundle_wheel, wheel

API = 'dsh-api = ">=1,<2"\n'


def test_add_installs_a_bundle_with_its_needs_and_makes_the_profile(user: User) -> None:
    bundle_wheel(
        user.wheels,
        "acme-notes",
        requires=["acme-lib", "dsh", "pydantic>=2"],
        api=API,
        source=RAISES,
    )
    wheel(user.wheels, "acme-lib", "0.3")
    done = user.plugin("add", "acme-notes")
    assert done.returncode == 0
    assert done.stderr == "dsh: initialized profile p at $DSH_HOME/profiles/p\n"
    assert "added acme-lib 0.3\n" in done.stdout
    assert "added acme-notes 1.0 (bundle acme-notes; plugins acme-notes)\n" in done.stdout
    assert user.installed() == ["acme_lib-0.3", "acme_notes-1.0"]
    assert user.manifest()["dependencies"] == {"acme-notes": "*"}
    assert user.bundles() == ["base", "acme-notes"]
    dumped = user.run("--profile", "p", "--dump-config")
    assert "# == acme-notes\n- id: acme-notes\n  name: acme_notes\n" in dumped.stdout
    listed = user.plugin("list")
    assert listed.stdout.splitlines() == [
        "NAME        VERSION  BUNDLE      PLUGINS     DSH-API",
        "acme-notes  1.0      acme-notes  acme-notes  >=1,<2",
    ]


def test_remove_takes_the_package_its_needs_and_its_bundle(user: User) -> None:
    user.made(dsh={"profile": {"bundles": ["base"]}})
    bundle_wheel(user.wheels, "acme-notes", requires=["acme-lib"])
    bundle_wheel(user.wheels, "acme-other", requires=["acme-shared"])
    wheel(user.wheels, "acme-lib")
    wheel(user.wheels, "acme-shared")
    user.done("add", "acme-notes", "acme_other")
    assert user.bundles() == ["base", "acme-notes", "acme-other"]
    for each in user.wheels.iterdir():
        each.unlink()
    # What stays is at hand: nothing is looked for outside.
    assert user.done("remove", "Acme_Notes") == "removed acme-lib 1.0\nremoved acme-notes 1.0\n"
    assert user.installed() == ["acme_other-1.0", "acme_shared-1.0"]
    assert user.manifest()["dependencies"] == {"acme-other": "*"}
    assert user.bundles() == ["base", "acme-other"]
    user.done("remove", "acme-other")
    assert user.installed() == []
    assert user.bundles() == ["base"]


def test_update_stays_in_the_range_and_leaves_others_alone(user: User) -> None:
    user.made()
    for name in ("acme-a", "acme-b"):
        bundle_wheel(user.wheels, name, "1.0")
    user.done("add", "acme-a>=1,<2", "acme-b")
    for name in ("acme-a", "acme-b"):
        bundle_wheel(user.wheels, name, "1.5")
        bundle_wheel(user.wheels, name, "2.0")
    assert user.done("install") == "nothing has changed\n"
    told = user.done("update", "acme-a")
    assert told == "changed acme-a 1.0 to 1.5 (bundle acme-a; plugins acme-a)\n"
    assert user.installed() == ["acme_a-1.5", "acme_b-1.0"]
    user.done("update")
    assert user.installed() == ["acme_a-1.5", "acme_b-2.0"]
    assert user.manifest()["dependencies"] == {"acme-a": ">=1,<2", "acme-b": "*"}


def test_install_follows_the_manifest(user: User) -> None:
    user.made(dependencies={"acme-a": "1.0", "acme-b": ">=1"})
    for name in ("acme-a", "acme-b", "acme-c"):
        bundle_wheel(user.wheels, name, "1.0")
    bundle_wheel(user.wheels, "acme-a", "2.0")
    missing = json.loads(user.plugin("list", "--json").stdout)
    assert [(each["name"], each["ok"]) for each in missing] == [
        ("acme-a", False),
        ("acme-b", False),
    ]
    assert "dsh plugin --profile p install" in missing[0]["problems"][0]
    user.done("install")
    assert user.installed() == ["acme_a-1.0", "acme_b-1.0"]
    assert user.bundles() == ["acme-a", "acme-b"]
    manifest = user.manifest()
    manifest["dependencies"] = {"acme-a": ">=2", "acme-c": "*"}
    (user.profile / "profile.json").write_text(json.dumps(manifest))
    user.done("install")
    assert user.installed() == ["acme_a-2.0", "acme_c-1.0"]
    assert user.bundles() == ["acme-a", "acme-c"]


def test_a_version_that_gains_a_bundle_is_listed_by_the_next_change(user: User) -> None:
    user.made()
    wheel(user.wheels, "acme-a", "1.0")
    done = user.plugin("add", "acme-a")
    assert done.returncode == 0
    assert "acme-a declares neither a bundle nor a plugin" in done.stderr
    assert user.bundles() == []
    bundle_wheel(user.wheels, "acme-a", "2.0")
    user.done("update")
    assert user.bundles() == ["acme-a"]
    wheel(user.wheels, "acme-a", "3.0")
    user.done("update")
    assert user.bundles() == []


def test_a_package_with_a_plugin_and_no_bundle_gets_no_warning(user: User) -> None:
    user.made()
    wheel(user.wheels, "acme-a", points={"dsh.plugins": {"acme-a": "acme_a"}})
    assert user.done("add", "acme-a") == "added acme-a 1.0 (plugins acme-a)\n"


def test_paths_are_relative_to_where_the_command_was_given(user: User) -> None:
    user.made()
    made = bundle_wheel(user.cwd / "di@st #1", "acme-a", "1.0", source="first = 1\n")
    user.done("add", f"./di@st #1/{made.name}")
    assert user.manifest()["dependencies"] == {"acme-a": f"file:{made}"}
    bundle_wheel(user.cwd / "di@st #1", "acme-a", "1.0", source="second = 2\n")
    told = user.done("add", f"link:di@st #1/{made.name}")
    assert told == "installed acme-a 1.0 again (bundle acme-a; plugins acme-a)\n"
    assert (user.site / "acme_a" / "__init__.py").read_text() == "second = 2\n"
    assert user.manifest()["dependencies"] == {"acme-a": f"link:{made}"}
    made.unlink()
    bundle_wheel(user.wheels, "acme-b")
    # The wheel that is installed stays when its file is gone.
    user.done("add", "acme-b")
    assert user.installed() == ["acme_a-1.0", "acme_b-1.0"]


def test_no_verb_and_no_dump_imports_the_package(user: User) -> None:
    user.made()
    bundle_wheel(user.wheels, "acme-a", "1.0", source=SIDE_EFFECT + PLUGIN, api=API)
    bundle_wheel(user.wheels, "acme-a", "1.1", source=SIDE_EFFECT + PLUGIN, api=API)
    user.done("add", "acme-a<1.1")
    user.plugin("list", "--json")
    user.done("add", "acme-a")
    user.done("update")
    user.done("install")
    assert "acme_a" in user.run("--profile", "p", "--dump-config").stdout
    assert not (user.home / "imported").exists()
    assert user.run("--profile", "p").stdout == "up\n"
    assert (user.home / "imported").exists()


def test_the_manifest_keeps_its_form_and_its_other_fields(user: User) -> None:
    user.made()
    text = (
        '{\n\t"name": "x",\n\t"x-mine": [1, "ä"],\n\t"dsh": {"profile": {"bundles": ["base"], '
        '"note": 1}}\n}'
    )
    (user.profile / "profile.json").write_text(text)
    bundle_wheel(user.wheels, "acme-a")
    user.done("add", "acme-a")
    written = (user.profile / "profile.json").read_text()
    assert written.startswith('{\n\t"name": "x",\n\t"x-mine": [\n\t\t1,\n\t\t"ä"\n\t],\n\t"dsh": {')
    assert not written.endswith("\n")
    assert user.manifest()["dsh"] == {"profile": {"bundles": ["base", "acme-a"], "note": 1}}
    before = (user.profile / "profile.json").stat().st_ino
    user.done("install")
    assert (user.profile / "profile.json").stat().st_ino == before


def test_a_package_json_is_kept_with_the_packages_of_its_own_manager(user: User) -> None:
    user.profile.mkdir(parents=True)
    path = user.profile / "package.json"
    dependencies = {"@acme/ui": "^1.0.0", "left": "^2.1", "acme-a": "*"}
    path.write_text(json.dumps({"dependencies": dependencies}))
    bundle_wheel(user.wheels, "acme-a")
    done = user.plugin("install")
    assert done.returncode == 0
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == ["left out"] * 2
    data = json.loads(path.read_text())
    assert data["dependencies"] == dependencies
    assert data["dsh"]["profile"]["bundles"] == ["acme-a"]
    user.plugin("remove", "left")
    assert json.loads(path.read_text())["dependencies"] == {"@acme/ui": "^1.0.0", "acme-a": "*"}
    assert not (user.profile / "profile.json").exists()


def test_extras_and_markers_stay_with_a_dependency(user: User) -> None:
    user.made()
    wheel(user.wheels, "acme-lib")
    bundle_wheel(user.wheels, "acme-a", requires=['acme-lib; extra == "fast"'], extras=["fast"])
    user.plugin("add", 'acme-a[fast]; python_version > "3"', 'acme-lib; python_version < "3"')
    assert user.installed() == ["acme_a-1.0", "acme_lib-1.0"]
    wanted = {
        "acme-a": '[fast]; python_version > "3"',
        "acme-lib": '; python_version < "3"',
    }
    assert user.manifest()["dependencies"] == wanted
    user.plugin("install")
    assert user.installed() == ["acme_a-1.0", "acme_lib-1.0"]
    assert user.manifest()["dependencies"] == wanted


def test_a_site_of_somebody_else_is_kept_aside(user: User) -> None:
    user.made()
    user.site.mkdir()
    (user.site / "mine.py").write_text("")
    bundle_wheel(user.wheels, "acme-a")
    done = user.plugin("add", "acme-a")
    assert done.returncode == 0
    assert "the former site was not made by dsh plugin; it is kept" in done.stderr
    assert user.installed() == ["acme_a-1.0"]
    user.done("install")
    (kept,) = user.profile.glob(".sites/kept-*")
    assert (kept / "mine.py").exists()


@pytest.mark.parametrize("verb", ["list", "remove", "update"])
def test_only_add_and_install_make_a_profile(user: User, verb: str) -> None:
    done = user.plugin(verb, *(["x"] if verb == "remove" else []))
    assert done.returncode == 1
    assert 'profile "p" does not exist' in done.stderr
    assert not user.profile.exists()


def test_a_template_has_its_own_bundles_when_it_is_made(user: User, tmp_path: Path) -> None:
    bundle_wheel(user.wheels, "acme-a")
    done = user.run("plugin", "--profile", "headless", "add", "acme-a")
    assert done.returncode == 0
    manifest = json.loads((user.home / "profiles/headless/profile.json").read_text())
    assert manifest["dsh"]["profile"]["bundles"] == ["base", "headless", "acme-a"]


def test_a_profile_without_a_folder_lists_nothing(user: User) -> None:
    assert user.run("plugin", "--profile", "headless", "list").stdout == "no plugins\n"
