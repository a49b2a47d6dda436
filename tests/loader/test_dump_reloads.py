"""A dump is a configuration: it reads back to the rows that boot mounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.loader.compose import Layer, apply_layers, compose_profile
from dsh.loader.dump import dump_rows
from dsh.loader.errors import PatchError
from dsh.loader.expr import Expr
from dsh.loader.layers import without_ids
from dsh.loader.rows import check_rows, same
from dsh.loader.yaml import load_yaml

IDS = st.sampled_from(["a", "b", "c", "1", "yes", "x y", "- z"])
NAMES = st.sampled_from(["n", "./plugin.py", "@deepseek-ai/dsh-tools", "cordis:include"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LEAVES = (
    TEXTS
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["a: b", "!!js x", "1", "null", "# no", "a\nb\n", " pad "])
    | (TEXTS.filter(str.strip) | st.sampled_from(["ctx.x ?? 3", "'a' + \"b\"", "{a: 1}"])).map(Expr)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(TEXTS, VALUES, max_size=3)
FIELDS = {
    "disabled": st.booleans() | st.just(Expr("process.platform === 'win32'")),
    "inject": st.lists(TEXTS, max_size=2) | st.dictionaries(TEXTS, st.none(), max_size=2),
    "isolate": st.dictionaries(TEXTS, st.just(True) | TEXTS, max_size=2),
    "intercept": st.dictionaries(TEXTS, MAPPINGS, max_size=2),
}
PLAIN = st.fixed_dictionaries({"name": NAMES}, optional={"id": IDS, "config": VALUES, **FIELDS})
ROWS = st.recursive(
    PLAIN,
    lambda inner: st.fixed_dictionaries(
        {
            "name": st.just("cordis:group"),
            "group": st.just(True),
            "config": st.lists(inner, max_size=3),
        },
        optional={"id": IDS},
    ),
    max_leaves=5,
)
PATCHES = st.lists(
    st.fixed_dictionaries({"insert": st.lists(ROWS, max_size=3)}, optional={"id": IDS})
    | st.fixed_dictionaries(
        {"id": IDS}, optional={"config": VALUES | MAPPINGS, "merge": MAPPINGS, **FIELDS}
    ),
    max_size=4,
)


def composed(layers: list[Layer]) -> list[dict[str, Any]] | None:
    """Return the rows as files would spell them; None when they make no tree."""
    try:
        made = apply_layers(layers, lambda _: None)
        check_rows(made.rows, "test")
    except PatchError:
        return None
    return without_ids(made.rows, made.unnamed)


def test_a_layer_whose_path_has_line_ends_adds_no_row() -> None:
    text = dump_rows([{"name": "n"}], ["/a\n- name: evil\x1b[2J"])
    assert load_yaml(text, "dump") == [{"name": "n"}]
    assert text.splitlines()[0] == "# == /a\\n- name: evil\\x1b[2J"


@settings(max_examples=300, deadline=None)
@given(st.lists(PATCHES, min_size=1, max_size=3))
def test_a_dump_inserts_the_rows_that_it_shows(layers: list[list[dict[str, Any]]]) -> None:
    rows = composed([Layer(str(n), patches) for n, patches in enumerate(layers)])
    if rows is None:
        return
    read = load_yaml(dump_rows(rows, ["# == origin: x"] * len(rows)), "dump")
    assert same(read, rows)
    again = composed([Layer("dump", [{"insert": read}])])
    assert same(again, rows)


def profile(home: Path, rows: str, name: str = "p") -> Path:
    folder = home / "profiles" / name
    folder.mkdir(parents=True)
    (folder / "profile.json").write_text("{}")
    (folder / "cordis.patch.yml").write_text(rows)
    return folder / "cordis.patch.yml"


def test_neighbours_of_equal_provenance_share_a_comment(tmp_path: Path) -> None:
    own = profile(tmp_path, "- insert: [{id: a, name: n}, {id: b, name: n}, {id: c, name: n}]\n")
    home = tmp_path / "cordis.patch.yml"
    home.write_text("- {id: c, config: 1}\n- insert: [{id: d, name: n}]\n")
    over = tmp_path / "over.yml"
    over.write_text("- {id: c, config: 2}\n")
    composition = compose_profile("p", tmp_path, patches=[str(over)])
    comments = [line for line in composition.dump().splitlines() if line.startswith("#")]
    assert comments == [f"# == {own}", f"# == {own}, patched by {home}, {over}", f"# == {home}"]


@pytest.mark.parametrize(
    ("patch", "changes"),
    [
        ("- {id: a, config: 1}\n", False),
        ("- {id: a, config: true}\n", True),
        ("- {id: a, merge: {}}\n", None),
        ("- {id: a, disabled: true}\n- {id: a, disabled: false}\n", True),
    ],
)
def test_a_layer_patched_a_row_when_the_row_is_another_after_it(
    tmp_path: Path, patch: str, changes: bool | None
) -> None:
    profile(tmp_path, "- insert: [{id: a, name: n, config: 1}]\n")
    home = tmp_path / "cordis.patch.yml"
    home.write_text(patch)
    if changes is None:
        with pytest.raises(PatchError, match="merge needs a config that is a mapping"):
            compose_profile("p", tmp_path)
        return
    (provenance,) = compose_profile("p", tmp_path).provenance
    assert (provenance.patched_by == (str(home),)) is changes
