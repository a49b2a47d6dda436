from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.loader.compose import Layer, apply_layers, compose_profile
from dsh.loader.errors import PatchError
from dsh.loader.expr import Expr
from dsh.loader.layers import field_origins
from dsh.loader.patch import apply_patches, merge


def patched(config: Any, *patches: dict[str, Any]) -> Any:
    row = {"id": "a", "name": "n"}
    rows = apply_patches([row if config is None else {**row, "config": config}], patches, _fail)
    return rows[0].get("config")


def _fail(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("config", "changes", "expected"),
    [
        ({"x": 1, "y": 2}, {"y": 3}, {"x": 1, "y": 3}),
        ({"x": {"y": 1, "z": 2}}, {"x": {"y": 3}}, {"x": {"y": 3, "z": 2}}),
        ({"x": [1, 2]}, {"x": [3]}, {"x": [3]}),
        ({"x": {"y": 1}}, {"x": 2}, {"x": 2}),
        ({"x": 1}, {"x": {"y": 2, "z": None}}, {"x": {"y": 2}}),
        ({"x": 1, "y": 2}, {"x": None, "gone": None}, {"y": 2}),
        ({"x": {"y": 1}}, {"x": {"y": None}}, {"x": {}}),
        ({"x": Expr("1")}, {"x": {"y": 2}}, {"x": {"y": 2}}),
        ({"x": {"y": 2}}, {"x": Expr("1")}, {"x": Expr("1")}),
        (None, {"x": 1}, {"x": 1}),
        ({"x": 1}, {}, {"x": 1}),
    ],
)
def test_merge_changes_single_fields(config: Any, changes: Any, expected: Any) -> None:
    assert patched(config, {"id": "a", "merge": changes}) == expected


def test_merge_applies_after_config_and_after_earlier_layers() -> None:
    both = {"merge": {"y": 2}, "id": "a", "config": {"x": 1, "y": 1}}
    assert patched({"old": 1}, both) == {"x": 1, "y": 2}
    assert patched({"x": 1}, {"id": "a", "merge": {"x": 2}}, {"id": "a", "merge": {"y": 3}}) == {
        "x": 2,
        "y": 3,
    }


def test_an_empty_merge_is_none() -> None:
    assert patched({"x": 1}, {"id": "a", "merge": None, "disabled": True}) == {"x": 1}


@pytest.mark.parametrize(
    ("config", "changes", "problem"),
    [
        ([1], {"x": 1}, 'patch "a": merge needs a config that is a mapping, .* is a list'),
        (Expr("x"), {"x": 1}, "is one value; replace it by config instead"),
        ({"x": 1}, [1], 'patch "a": merge must be a mapping of config fields, got a list'),
        ({"x": 1}, Expr("x"), "merge must be a mapping of config fields, got an expression"),
    ],
)
def test_what_cannot_be_merged_is_refused(config: Any, changes: Any, problem: str) -> None:
    with pytest.raises(PatchError, match=problem):
        patched(config, {"id": "a", "merge": changes})


def test_a_row_has_no_merge() -> None:
    warnings: list[str] = []
    row = {"id": "a", "name": "n", "merge": {"x": 1}}
    apply_patches([], [{"insert": [row]}], warnings.append)
    assert warnings == ["row \"a\": unknown field 'merge'"]


JSON = st.recursive(
    st.integers() | st.text(max_size=2) | st.just(Expr("x")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=8,
)
CHANGES = st.recursive(
    st.none() | JSON,
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(st.sampled_from("xyz"), JSON)


@settings(max_examples=200, deadline=None)
@given(MAPPINGS, st.dictionaries(st.sampled_from("xyz"), CHANGES))
def test_a_merge_is_idempotent_and_shares_nothing(base: Any, changes: Any) -> None:
    kept = copy.deepcopy((base, changes))
    once = merge(base, changes)
    assert merge(once, changes) == once
    assert (base, changes) == kept
    for key, change in changes.items():
        if not isinstance(change, dict):
            assert once.get(key) == change
    assert all(once[key] == base[key] for key in base if key not in changes)


def test_the_dump_shows_the_merged_config_and_who_changed_it(tmp_path: Path) -> None:
    folder = tmp_path / "profiles" / "p"
    folder.mkdir(parents=True)
    (folder / "profile.json").write_text("{}")
    own = folder / "cordis.patch.yml"
    own.write_text("- insert: [{id: a, name: n, config: {x: !!js process.env.X, y: {z: 1}}}]\n")
    home = tmp_path / "cordis.patch.yml"
    home.write_text("- {id: a, merge: {y: {w: !!js process.env.W}}}\n")
    composition = compose_profile("p", tmp_path)
    assert composition.dump() == (
        f"# == {own}, patched by {home}\n"
        "- id: a\n"
        "  name: n\n"
        "  config:\n"
        "    x: !!js process.env.X\n"
        "    y:\n"
        "      z: 1\n"
        "      w: !!js process.env.W\n"
    )
    assert composition.field_origins("a") == {
        "id": str(own),
        "name": str(own),
        "config.x": str(own),
        "config.y.z": str(own),
        "config.y.w": str(home),
    }


def test_a_field_belongs_to_the_last_layer_that_set_it() -> None:
    group = {"id": "g", "name": "cordis:group", "group": True, "config": [{"id": "a", "name": "n"}]}
    layers = [
        Layer("base", [{"insert": [group]}]),
        Layer("one", [{"id": "a", "config": {"x": 1, "y": 1}}]),
        Layer("two", [{"id": "a", "merge": {"y": 2, "z": 2}}]),
        Layer("same", [{"id": "a", "merge": {"y": 2}}, {"id": "no", "merge": {}}]),
        Layer("less", [{"id": "a", "merge": {"z": None}}]),
    ]
    assert field_origins(layers, "a") == {
        "id": "base",
        "name": "base",
        "config.x": "one",
        "config.y": "two",
    }
    assert field_origins(layers, "nobody") == {}


def test_a_rows_made_up_id_depends_on_its_own_layer_alone() -> None:
    def ids(*layers: Layer) -> list[str]:
        return [row["id"] for row in apply_layers(layers, _fail).rows]

    own = Layer("own", [{"insert": [{"name": "x"}, {"name": "x"}]}])
    first, second = ids(own)
    assert first != second
    assert ids(Layer("other", [{"insert": [{"name": "y"}]}]), own)[1:] == [first, second]
    changed = Layer("own", [*own.patches, {"insert": []}])
    assert not {first, second} & set(ids(changed))
    assert not {first, second} & set(ids(Layer("elsewhere", own.patches)))


def test_a_made_up_id_is_in_no_dump(tmp_path: Path) -> None:
    folder = tmp_path / "profiles" / "p"
    folder.mkdir(parents=True)
    (folder / "profile.json").write_text("{}")
    (folder / "cordis.patch.yml").write_text(
        "- insert: [{name: n}, {name: cordis:group, group: true, config: [{name: m}]}]\n"
    )
    composition = compose_profile("p", tmp_path)
    assert len(composition.unnamed) == 3
    assert "id:" not in composition.dump()


def test_a_quiet_layer_warns_of_nothing() -> None:
    apply_layers([Layer("launcher", [{"id": "a", "merge": {"x": 1}}], quiet=True)], _fail)
