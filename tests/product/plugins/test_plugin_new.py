"""The package that ``dsh plugin new`` writes: its check is green, and an agent uses its tool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_support import PATIENCE_S, User, refused

from dsh.product.plugins.new import NameRefused, check_name

pytestmark = pytest.mark.timeout(240)
MODEL = """\
- id: agent-default-model
  config: {{provider: rehearsal, model: rehearsal}}
- insert:
    - {{id: llm-rehearsal, name: dsh.model.adapters.rehearsal, config: {{script: {script}}}}}
"""
TOOL = "acme_notes_count"


@pytest.mark.slow
def test_the_check_of_a_new_package_is_green_and_an_agent_calls_its_tool(user: User) -> None:
    done = user.run("plugin", "new", "Acme.Notes", "--dir", "made/here")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "next: cd made/here && make check"
    package = user.cwd / "made" / "here"

    checked = make(user, package, "check")
    assert "4 passed" in checked.stdout
    # Without isolation, since nothing can be fetched for it here.
    make(user, package, "wheel", PIP_NO_BUILD_ISOLATION="0")
    (built,) = (package / "dist").iterdir()

    added = user.run("plugin", "--profile", "headless", "add", f"made/here/dist/{built.name}")
    assert added.returncode == 0, added.stderr
    listed = json.loads(user.run("plugin", "--profile", "headless", "list", "--json").stdout)
    assert [(each["name"], each["plugins"], each["ok"]) for each in listed] == [
        ("acme-notes", ["acme-notes"], True)
    ]
    dumped = user.run("--profile", "headless", "--dump-config").stdout
    assert "# == acme-notes\n- id: acme-notes\n  name: acme_notes.plugin\n" in dumped

    (user.cwd / "cordis.yml").write_text(MODEL.format(script=user.cwd / "script.json"))
    replies = [
        {"calls": [{"name": TOOL, "arguments": {"text": "one two three"}}]},
        {"expect": {"contains": "3", "is_error": False}, "text": "three words"},
    ]
    (user.cwd / "script.json").write_text(json.dumps({"replies": replies}))
    ran = user.run("--profile", "headless", "--patch", "cordis.yml", "count")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "three words\n", "")


@pytest.mark.slow
def test_a_checkout_installs_when_building_is_allowed(user: User) -> None:
    user.run("plugin", "new", "acme-notes", "--dir", ".")
    assert "is a folder" in refused(user.plugin("add", "."))
    user.made()
    told = user.done("add", ".", "--allow-build", "--no-build-isolation")
    assert told == "added acme-notes 0.1.0 (bundle acme-notes; plugins acme-notes)\n"
    assert user.manifest()["dependencies"] == {"acme-notes": f"file:{user.cwd}"}
    source = user.cwd / "src" / "acme_notes" / "plugin.py"
    source.write_text(source.read_text() + "# changed\n")
    assert "needs" not in user.done("install")
    assert "--allow-build" in refused(user.plugin("update"))
    user.done("update", "--allow-build", "--no-build-isolation")
    assert (user.site / "acme_notes" / "plugin.py").read_text().endswith("# changed\n")


def make(user: User, package: Path, target: str, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["make", "--no-print-directory", target, f"PYTHON={sys.executable}"],
        cwd=package,
        env={**user.env, **env},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "use letters, digits and hyphens"),
        ("1st", "begin with a letter"),
        ("a b", "use letters"),
        ("../x", "use letters"),
        ("a/b", "use letters"),
        ("ä", "use letters"),
        ("acme-", "use letters"),
        ("x" * 41, "longer than 40"),
        ("class", "a word of Python"),
        ("match", "a word of Python"),
        ("json", "Python has a module"),
        ("dsh", "the installation of dsh has a package"),
        ("tests", "the installation of dsh has a package"),
        ("pydantic", "the installation of dsh has a package"),
    ],
)
def test_names_that_no_package_can_have_are_refused(name: str, problem: str) -> None:
    with pytest.raises(NameRefused, match=problem):
        check_name(name)


@pytest.mark.parametrize("name", ["acme-notes", "Acme_Notes", "acme..notes", "a1"])
def test_names_are_put_in_the_form_that_compares_equal(name: str) -> None:
    assert check_name(name) in {"acme-notes", "a1"}


def test_a_folder_that_holds_something_is_left_alone(user: User) -> None:
    (user.cwd / "acme").mkdir()
    (user.cwd / "acme" / "mine").write_text("x")
    assert "is no empty folder" in refused(user.run("plugin", "new", "acme"))
    assert [each.name for each in (user.cwd / "acme").iterdir()] == ["mine"]
    (user.cwd / "file").write_text("x")
    assert "is no empty folder" in refused(user.run("plugin", "new", "acme", "--dir", "file"))
    (user.cwd / "empty").mkdir()
    assert user.run("plugin", "new", "acme", "--dir", "empty").returncode == 0


def test_a_folder_that_cannot_be_made_leaves_nothing(user: User) -> None:
    (user.cwd / "file").write_text("x")
    line = refused(user.run("plugin", "new", "acme", "--dir", "file/below/it"))
    assert "not a directory" in line
    assert [each.name for each in user.cwd.iterdir()] == ["file"]
