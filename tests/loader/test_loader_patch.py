from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.loader.aliases import same_plugin
from dsh.loader.compose import Layer, Provenance, apply_layers
from dsh.loader.errors import PatchError
from dsh.loader.expr import Expr
from dsh.loader.patch import apply_patches
from dsh.loader.rows import check_rows

Rows = list[dict[str, Any]]


def rows() -> Rows:
    return [
        {"id": "a", "name": "pkg.a", "config": {"x": 1, "y": {"z": 2}}},
        {
            "id": "group",
            "name": "cordis:group",
            "group": True,
            "config": [{"id": "inner", "name": "pkg.inner", "config": {"k": 1}}],
        },
    ]


def patched(*patches: dict[str, Any]) -> tuple[Rows, list[str]]:
    warnings: list[str] = []
    before = rows()
    kept = copy.deepcopy(patches)
    result = apply_patches(before, patches, warnings.append, same_name=same_plugin)
    assert before == rows()
    assert patches == kept
    return result, warnings


def test_a_field_replaces_the_rows_field_whole() -> None:
    result, warnings = patched({"id": "a", "config": {"y": 3}}, {"id": "a", "disabled": True})
    assert result[0] == {"id": "a", "name": "pkg.a", "config": {"y": 3}, "disabled": True}
    assert warnings == []


def test_a_patch_never_changes_the_name() -> None:
    result, _ = patched({"id": "a", "name": "pkg.a", "config": 1})
    assert result[0] == {"id": "a", "name": "pkg.a", "config": 1}


def test_nested_rows_of_groups_are_reached() -> None:
    result, warnings = patched({"id": "inner", "config": {"k": 2}})
    assert result[1]["config"][0]["config"] == {"k": 2}
    assert warnings == []


def test_rows_are_inserted_at_the_top_and_in_groups() -> None:
    result, warnings = patched(
        {"insert": [{"id": "b", "name": "pkg.b"}]},
        {"id": "group", "insert": [{"id": "c", "name": "pkg.c"}], "disabled": True},
    )
    assert [row["id"] for row in result] == ["a", "group", "b"]
    assert [row["id"] for row in result[1]["config"]] == ["inner", "c"]
    assert "disabled" not in result[1]
    assert warnings == []


def test_a_group_without_rows_gets_a_list() -> None:
    result, _ = patched(
        {"id": "group", "config": None}, {"id": "group", "insert": [{"id": "c", "name": "n"}]}
    )
    assert result[1]["config"] == [{"id": "c", "name": "n"}]


def test_later_patches_reach_inserted_rows() -> None:
    result, warnings = patched(
        {"insert": [{"id": "b", "name": "n", "config": {"x": 1}}]},
        {"id": "b", "config": {"x": 2}},
        {"id": "b", "disabled": True},
    )
    assert result[2] == {"id": "b", "name": "n", "config": {"x": 2}, "disabled": True}
    assert warnings == []


def test_children_from_a_config_override_are_not_reached_in_the_same_pass() -> None:
    result, warnings = patched(
        {"id": "group", "config": [{"id": "fresh", "name": "n"}]},
        {"id": "fresh", "disabled": True},
    )
    assert result[1]["config"] == [{"id": "fresh", "name": "n"}]
    assert warnings == ['patch: entry "fresh" not found']


@pytest.mark.parametrize(
    ("patch", "warning"),
    [
        ({"id": "innner", "config": 1}, 'patch: entry "innner" not found, did you mean "inner"?'),
        ({"id": "zzz", "config": 1}, 'patch: entry "zzz" not found'),
        ({"config": 1}, "patch: id is required for non-insert patches"),
        ({"id": "zzz", "insert": []}, 'patch insert: entry "zzz" not found'),
        ({"id": "a", "insert": []}, 'patch insert: entry "a" is not a group'),
        (
            {"id": "a", "name": "pkg.z", "config": 1},
            'patch: name mismatch for "a" (expected "pkg.z", got "pkg.a"), skipping',
        ),
    ],
)
def test_a_patch_without_a_target_is_skipped_with_a_warning(
    patch: dict[str, Any], warning: str
) -> None:
    result, warnings = patched(patch)
    assert result == rows()
    assert warnings == [warning]


def test_an_unknown_field_is_told() -> None:
    _, warnings = patched({"id": "a", "confg": 1})
    assert warnings == ["patch \"a\": unknown field 'confg' (did you mean 'config'?)"]


def test_a_name_guard_compares_what_names_resolve_to() -> None:
    base = [{"id": "timer", "name": "dsh.kernel.timer:Timer"}]
    warnings: list[str] = []
    patch = {"id": "timer", "name": "@deepseek-ai/cordis-plugin-timer", "disabled": True}
    result = apply_patches(base, [patch], warnings.append, same_name=same_plugin)
    assert result[0]["disabled"] is True
    assert warnings == []


def test_the_result_shares_nothing_with_its_inputs() -> None:
    before = rows()
    patches = [{"insert": [{"id": "b", "name": "n", "config": {"list": [1]}}]}]
    result = apply_patches(before, patches, print)
    result[0]["config"]["y"]["z"] = 9
    result[2]["config"]["list"].append(2)
    assert before == rows()
    assert patches == [{"insert": [{"id": "b", "name": "n", "config": {"list": [1]}}]}]


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ({"insert": {"id": "b"}}, "must be a list of rows"),
        ({"insert": ["x"]}, "must be a list of rows"),
        ({"id": 3, "config": 1}, "id must be a text"),
        ({"id": "a", "disabled": "yes"}, "disabled must be true, false or an expression"),
        ({"id": "a", "group": Expr("1")}, "group must be true or false, got an expression"),
    ],
)
def test_an_unusable_shape_is_refused(patch: dict[str, Any], problem: str) -> None:
    with pytest.raises(PatchError, match=problem):
        patched(patch)


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ([{"id": "a", "name": "n"}, {"id": "a", "name": "m"}], 'duplicate row id "a" in profile'),
        ([{"id": "a"}], "needs a name"),
        (["x"], "row 1 of profile must be a mapping, got a text"),
        ({"a": 1}, "must be a list of rows"),
        (
            [{"id": "g", "name": "n", "group": True, "config": [{"id": "x", "name": ""}]}],
            'row 1 of group "g"',
        ),
    ],
)
def test_rows_that_make_no_tree_are_refused(tree: Any, problem: str) -> None:
    with pytest.raises(PatchError, match=problem):
        check_rows(tree, "profile")


def test_provenance_names_the_origin_and_every_changer_in_order() -> None:
    layers = [
        Layer("base", [{"insert": rows()}]),
        Layer("profile", [{"id": "a", "config": 1}, {"insert": [{"id": "b", "name": "n"}]}]),
        Layer("home", [{"id": "a", "disabled": True}, {"id": "inner", "config": 5}]),
        Layer("same", [{"id": "a", "disabled": True}, {"id": "nope", "disabled": True}]),
    ]
    warnings: list[str] = []
    result, provenance, _ = apply_layers(layers, warnings.append)
    assert [row["id"] for row in result] == ["a", "group", "b"]
    assert provenance == [
        Provenance("base", ("profile", "home")),
        Provenance("base", ("home",)),
        Provenance("profile", ()),
    ]
    assert str(provenance[0]) == "base, patched by profile, home"
    assert warnings == ['[same] patch: entry "nope" not found']


IDS = st.sampled_from("abcde")
ROWS = st.recursive(
    st.fixed_dictionaries({"id": IDS, "name": st.just("n")}, optional={"config": st.integers()}),
    lambda inner: st.fixed_dictionaries(
        {"id": IDS, "name": st.just("g"), "group": st.just(True), "config": st.lists(inner)}
    ),
    max_leaves=6,
)
PATCHES = st.lists(
    st.fixed_dictionaries({"insert": st.lists(ROWS, max_size=2)}, optional={"id": IDS})
    | st.fixed_dictionaries(
        {"id": IDS}, optional={"config": st.integers() | st.lists(ROWS), "disabled": st.booleans()}
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(ROWS, max_size=4), st.lists(PATCHES, max_size=3))
def test_layers_are_one_pass_of_the_same_patches(tree: Rows, layers: list[Rows]) -> None:
    kept = copy.deepcopy((tree, layers))
    flat = [{"insert": tree}, *(patch for layer in layers for patch in layer)]
    whole = apply_patches([], flat, lambda _: None)
    layered, provenance, _ = apply_layers(
        [
            Layer("tree", [{"insert": tree}]),
            *(Layer(str(n), each) for n, each in enumerate(layers)),
        ],
        lambda _: None,
    )
    assert layered == whole
    assert len(provenance) == len(whole)
    assert (tree, layers) == kept


def test_an_id_that_is_there_twice_is_refused_below_a_group_that_is_one_by_name_alone() -> None:
    below = {"id": "g", "name": "cordis:group", "config": [{"id": "a", "name": "x"}]}
    with pytest.raises(PatchError, match='duplicate row id "a"'):
        check_rows([{"id": "a", "name": "x"}, below], "the tree")
