"""From a row's name to its plugin: installed ones, files, upstream's names, and broken code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_support import Shelf, loader_on

from dsh.base.errors import error_chain
from dsh.kernel import Context
from dsh.loader.aliases import ALIASES, SCOPE, UNSERVED, same_plugin, why_unserved
from dsh.loader.api import UnsuitableApi
from dsh.loader.errors import EntryError, UnknownPlugin
from dsh.loader.resolve import module_of, resolve_plugin
from dsh.loader.resolve_errors import BrokenPlugin, UnservedPlugin

PLUGIN = "def apply(ctx): ...\n"

Install = Callable[..., None]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """A folder at the end of the import path, as a profile's own one is."""
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in set(sys.modules) - before:
        if name.startswith(("dsh_file_", "third_", "clock_", "colorsys_")):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def install(site: Path) -> Install:
    """Put a distribution into the site folder."""

    def put(distribution: str, points: dict[str, str], **files: str) -> None:
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0")
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[dsh.plugins]\n{lines}")
        for name, text in files.items():
            path = site / name.replace("__", "/", 1)
            path = path.with_name(f"{path.name}.py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()

    return put


def find(name: str, base: Path | None = None) -> Any:
    return resolve_plugin(name, base, {"group": "the group"})


# installed plugins


@pytest.mark.parametrize("name", ["my-clock", "my.clock", "clock", "@corp/clock", "Mein Wecker"])
def test_an_installed_plugin_is_found_by_the_name_of_its_entry_point(
    install: Install, name: str
) -> None:
    install("third-clock", {name: "clock_module"}, clock_module=PLUGIN)
    assert find(name).__name__ == "clock_module"


def test_an_entry_point_may_lead_to_an_attribute(install: Install) -> None:
    text = "class Clock:\n    class Inner: ...\n"
    install("third-clock", {"c": "clock_module:Clock.Inner"}, clock_module=text)
    assert find("c").__name__ == "Inner"


def test_a_plugin_may_be_called_like_a_module_that_is_none(install: Install) -> None:
    install("third-colors", {"colorsys": "colorsys_plugin"}, colorsys_plugin=PLUGIN)
    assert find("colorsys").__name__ == "colorsys_plugin"
    assert module_of("colorsys", None) == "colorsys_plugin"


def test_what_an_installed_package_promises_and_lacks_is_said(install: Install) -> None:
    install("third-clock", {"c": "clock_missing"})
    with pytest.raises(UnknownPlugin, match="package third-clock promises it and has no module"):
        find("c")


def test_two_packages_with_one_plugin_name_are_told_apart_by_the_user(install: Install) -> None:
    install("third-one", {"c": "clock_one"}, clock_one=PLUGIN)
    install("third-two", {"c": "clock_two"}, clock_two=PLUGIN)
    with pytest.raises(UnknownPlugin, match=r"several packages .*: third-one, third-two"):
        find("c")
    assert find("clock_two").__name__ == "clock_two"


def test_the_nearest_installed_plugin_is_suggested(install: Install) -> None:
    install("third-clock", {"my-special-clock": "clock_module"}, clock_module=PLUGIN)
    with pytest.raises(UnknownPlugin, match='did you mean "my-special-clock"'):
        find("my-specal-clock")


def test_a_package_for_another_api_is_refused_before_its_code_runs(
    install: Install, site: Path
) -> None:
    text = "raise AssertionError('the code ran')\n"
    install("third-clock", {"c": "third_pkg.mod"}, third_pkg__mod=text)
    (site / "third_pkg" / "dsh.toml").write_text('dsh-api = ">=7"\n')
    for name in ("c", "third_pkg.mod", "third_pkg.mod:x"):
        with pytest.raises(UnsuitableApi, match=r'"third_pkg" was made for dsh API >=7'):
            find(name)


# upstream's names


def test_a_name_is_either_served_or_not() -> None:
    assert not set(ALIASES) & set(UNSERVED)
    assert all(name.startswith(SCOPE) for name in (*ALIASES, *UNSERVED))


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_every_alias_leads_to_a_plugin(name: str) -> None:
    ours = ALIASES[name]
    if ours == "cordis:include":
        return
    found = find(name)
    assert found == "the group" or found is find(ours)
    assert same_plugin(name, ours)


@pytest.mark.parametrize("name", sorted(UNSERVED))
def test_an_upstream_plugin_that_we_lack_is_called_that(name: str) -> None:
    with pytest.raises(UnservedPlugin) as caught:
        find(name)
    text = str(caught.value)
    assert text.startswith(f'cannot resolve plugin "{name}": this is a plugin of the upstream ')
    assert caught.value.reason == UNSERVED[name]
    assert f"({UNSERVED[name]})" in text


def test_the_browsers_plugins_are_known_by_their_prefix() -> None:
    assert "browser" in str(why_unserved("@deepseek-ai/dsh-ui-conversation"))
    assert why_unserved("@deepseek-ai/dsh-ui") is None
    assert why_unserved("dsh-ui-conversation") is None


def test_an_upstream_name_that_nobody_knows_is_unknown() -> None:
    with pytest.raises(UnknownPlugin, match="no module, file or installed plugin of upstream"):
        find("@deepseek-ai/dsh-quantum")


def test_somebody_else_may_serve_what_we_do_not(install: Install) -> None:
    install("third-skills", {"@deepseek-ai/dsh-skill": "third_skill"}, third_skill=PLUGIN)
    assert find("@deepseek-ai/dsh-skill").__name__ == "third_skill"


async def test_the_row_that_cannot_be_served_is_named(root: Context) -> None:
    loader = await loader_on(root)
    row = {"id": "my-skills", "name": "@deepseek-ai/dsh-skill"}
    with pytest.raises(EntryError, match=r"entry my-skills \(@deepseek-ai/dsh-skill\): .*upstream"):
        await loader.mount([row])
    await loader.mount([{**row, "disabled": True}])


# files


def test_a_folder_is_a_package_with_relative_imports(tmp_path: Path, site: Path) -> None:
    folder = tmp_path / "plug"
    folder.mkdir()
    (folder / "__init__.py").write_text("from .part import apply\n")
    (folder / "part.py").write_text(PLUGIN)
    assert find("./plug", tmp_path) is find(folder.as_uri()) is find("../plug", tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("./empty", "a folder without __init__.py: "),
        ("./notes.txt", "not a Python file: "),
        ("./no.py", "no such file: "),
        ("./a\0b", "no usable path: "),
        ("file:///no%00.py", "no usable path: "),
        ("./loop", "no"),
        ("./" + "x" * 5000, "no"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UnknownPlugin, match=problem):
        find(name, tmp_path)


def test_a_relative_file_needs_a_place() -> None:
    with pytest.raises(UnknownPlugin, match="needs a tree that has a folder"):
        find("./x.py")


# code that does not import


def broken(tmp_path: Path, text: str, name: str = "broken.py") -> BrokenPlugin:
    (tmp_path / name).write_text(text)
    with pytest.raises(BrokenPlugin) as caught:
        find(f"./{name}", tmp_path)
    return caught.value


@pytest.mark.parametrize(
    ("text", "line", "source", "what", "cause"),
    [
        (
            "x = 1\ndef apply(ctx:\n",
            2,
            "def apply(ctx:",
            "is not valid Python",
            "'(' was never closed",
        ),
        ("if x:\nfoo()\n", 2, "foo()", "is not valid Python", "expected an indented block"),
        ("x = '\\x1'\n", 1, "x = '\\x1'", "is not valid Python", "unicode error"),
        (
            "import os\nimport no_such_thing\n",
            2,
            "import no_such_thing",
            "imports what is not installed",
            "No module named 'no_such_thing'",
        ),
        (
            "from dsh.kernel import NoSuch\n",
            1,
            "from dsh.kernel import NoSuch",
            "raises ImportError while it is imported",
            "cannot import name 'NoSuch'",
        ),
        (
            "import json\n\njson.loads('{')\n",
            3,
            "json.loads('{')",
            "raises JSONDecodeError while it is imported",
            "Expecting property name",
        ),
        (
            "def f():\n    return 1 / 0\n\nf()\n",
            2,
            "return 1 / 0",
            "raises ZeroDivisionError while it is imported",
            "division by zero",
        ),
        (
            "open('/no/such/file')\n",
            1,
            "open('/no/such/file')",
            "raises FileNotFoundError while it is imported",
            "No such file",
        ),
    ],
)
def test_a_module_that_fails_to_import_is_placed(
    tmp_path: Path, text: str, line: int, source: str, what: str, cause: str
) -> None:
    error = broken(tmp_path, text)
    path = str(tmp_path / "broken.py")
    assert error.place is not None
    assert (error.place.path, error.place.line, error.place.source) == (path, line, source)
    shown = error_chain(error)
    assert shown.startswith(f'plugin "./broken.py" {what}, at {path}, line {line} ({source}); ')
    assert cause in shown


def test_a_long_line_is_shown_in_part(tmp_path: Path) -> None:
    error = broken(tmp_path, f"x = ({'1 + ' * 400}\n")
    assert len(str(error)) < 500
    assert "..." in str(error)


def test_a_broken_file_can_be_mended(tmp_path: Path, site: Path) -> None:
    folder = tmp_path / "plug"
    folder.mkdir()
    (folder / "part.py").write_text("value = 1\n")
    broken(tmp_path, "from .part import apply\n", "plug/__init__.py")
    (folder / "part.py").write_text("def apply(ctx):\n    return None\n")
    importlib.invalidate_caches()
    assert find("./plug/__init__.py", tmp_path).apply


def test_an_installed_plugin_is_placed_in_its_own_code(install: Install, site: Path) -> None:
    helper = "import json\n\ndef load():\n    json.loads('[')\n"
    install(
        "third-clock",
        {"c": "third_pkg.mod"},
        third_pkg__mod="from third_pkg.helper import load\nload()\n",
        third_pkg__helper=helper,
    )
    with pytest.raises(BrokenPlugin) as caught:
        find("c")
    place = caught.value.place
    assert place is not None
    assert place == (str(site / "third_pkg" / "helper.py"), 4, "json.loads('[')")


async def test_the_row_of_a_broken_plugin_is_named(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text("def apply(:\n")
    loader = await loader_on(root)
    row = {"id": "mine", "name": str(tmp_path / "bad.py")}
    with pytest.raises(EntryError) as caught:
        await loader.mount([row, {"id": "good", "name": plugins.recorder("m")}])
    shown = str(caught.value)
    assert shown.startswith("failed to import loader entry mine (")
    assert "bad.py, line 1 (def apply(:); correct it there: " in shown
    assert list(loader.entries()) == []


def test_an_exit_in_a_module_is_not_ours_to_hide(tmp_path: Path) -> None:
    (tmp_path / "leaver.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(SystemExit):
        find("./leaver.py", tmp_path)
