from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from dsh.loader.hmr.graph import ImportGraph, closure, plan
from dsh.loader.hmr.imports import imported_names
from dsh.loader.hmr.roots import IGNORED, Roots


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a", {"a"}),
        ("import a.b.c", {"a", "a.b", "a.b.c"}),
        ("import a.b as x", {"a.b"}),
        ("from a.b import c, d as e", {"a.b", "a.b.c", "a.b.d"}),
        ("from a import *", {"a"}),
        ("from . import x", {"pkg.sub", "pkg.sub.x"}),
        ("from .x import y", {"pkg.sub.x", "pkg.sub.x.y"}),
        ("from .. import y", {"pkg", "pkg.y"}),
        ("from ....far import y", set()),
        ("def f():\n    import lazy", {"lazy"}),
        ("class C:\n    from lazy import y", {"lazy", "lazy.y"}),
        ("try:\n    import a\nexcept ImportError:\n    import b", {"a", "b"}),
        ("import importlib\nimportlib.import_module('dyn')", {"importlib", "dyn"}),
        ("__import__('dyn')", {"dyn"}),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", {"b"}),
        ("if typing.TYPE_CHECKING:\n    import a", set()),
        ("if not TYPE_CHECKING:\n    import a", {"a"}),
    ],
)
def test_imports_are_read_from_the_source(source: str, names: set[str]) -> None:
    assert imported_names(source, "pkg.sub") == names


def test_a_module_without_a_package_has_no_relative_names() -> None:
    assert imported_names("from . import x", "") == frozenset()


EDGES = {
    "row": {"helper", "core"},
    "helper": {"deep"},
    "deep": set[str](),
    "other": {"core"},
    "core": set[str](),
    "main": {"core", "cli"},
    "cli": set[str](),
    "stray": {"deep"},
}


@pytest.mark.parametrize("edited", ["deep", "helper", "row"])
def test_a_row_is_loaded_anew_when_anything_it_uses_was_edited(edited: str) -> None:
    decided = plan([edited], EDGES, ["row", "other"], frozenset())
    chain = ["row", "helper", "deep"]
    assert decided.accepted == set(chain[: chain.index(edited) + 1])
    assert decided.rows == {"row"}
    assert not decided.declined
    assert not decided.unused


def test_what_was_loaded_before_the_loader_is_declined() -> None:
    decided = plan(["core", "cli"], EDGES, ["row"], frozenset({"main", "core", "cli"}))
    assert decided.declined == {"core", "cli"}
    assert decided.accepted == frozenset()


def test_what_only_declined_modules_import_is_declined_however_late_it_came() -> None:
    decided = plan(["cli"], EDGES, ["row"], frozenset({"main"}))
    assert decided.declined == {"cli"}


def test_a_rows_module_that_was_loaded_early_for_itself_alone_is_accepted() -> None:
    decided = plan(["deep"], EDGES, ["row"], frozenset({"main", "row", "helper", "deep"}))
    assert decided.accepted == {"row", "helper", "deep"}


def test_what_no_row_uses_is_left_alone() -> None:
    decided = plan(["stray"], EDGES, ["row"], frozenset())
    assert decided.unused == {"stray"}
    assert not decided.accepted


def test_circular_imports_end() -> None:
    edges = {"a": {"b"}, "b": {"a"}}
    assert closure(["a"], edges) == {"a", "b"}
    assert plan(["b"], edges, ["a"], frozenset()).accepted == {"a", "b"}


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("a.py", True),
        ("pkg/deep/a.py", True),
        ("cache/a.py", False),
        ("pkg/cache/a.py", True),
        ("node_modules/a.py", False),
        ("pkg/node_modules/x/a.py", False),
        (".hidden/a.py", False),
        ("pkg/.hidden.py", False),
        ("pkg/__pycache__/a.py", False),
        ("lib/site-packages/a.py", False),
        ("notes.txt", False),
    ],
)
def test_ignored_patterns_are_relative_to_the_root(tmp_path: Path, path: str, taken: bool) -> None:
    root = tmp_path / ".home" / "data"
    assert Roots([root]).has_source(str(root / path)) is taken


def test_the_standard_library_is_not_watched_below_a_wide_root() -> None:
    assert importlib.__file__ is not None
    assert not Roots([Path("/")], ()).has_source(importlib.__file__)


def test_a_link_to_a_root_is_that_root(tmp_path: Path) -> None:
    real, alias = tmp_path / "real", tmp_path / "alias"
    real.mkdir()
    alias.symlink_to(real)
    assert Roots([alias]).has_source(str(real / "a.py"))
    assert Roots([real]).has_source(str(alias / "a.py"))


def test_excluded_folders_are_not_even_walked(tmp_path: Path) -> None:
    for folder in ("src/pkg", "node_modules/x", ".git/objects", "data/deep"):
        (tmp_path / folder).mkdir(parents=True)
    walked = [Path(each).relative_to(tmp_path).as_posix() for each in Roots([tmp_path]).walk()]
    assert sorted(walked) == [".", "src", "src/pkg"]
    assert "**/node_modules" in IGNORED


def test_computed_imports_are_recorded_as_they_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hmrgraph_dyn.py").write_text(
        "import importlib\nimportlib.import_module('hmrgraph_' + 'target')\n"
    )
    (tmp_path / "hmrgraph_target.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    graph = ImportGraph(Roots([tmp_path]))
    stop = graph.recorder.install()
    try:
        importlib.import_module("hmrgraph_dyn")
        modules = graph.modules()
        graph.learn(modules)
        graph.read(modules)
        assert graph.edges(modules) == {
            "hmrgraph_dyn": {"hmrgraph_target"},
            "hmrgraph_target": set(),
        }
    finally:
        stop()
        for name in ("hmrgraph_dyn", "hmrgraph_target"):
            sys.modules.pop(name, None)
    assert graph.recorder not in sys.meta_path
