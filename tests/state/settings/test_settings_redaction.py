"""Secrets of settings come out of no description, error, event or printed value."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    computed_field,
    create_model,
    field_validator,
)
from settings_harness import Frozen, Keyed, Tree

from dsh.base.json import dumps_str, thaw
from dsh.state.documents import DocumentError, DocumentFile
from dsh.state.settings.namespace import Namespace
from dsh.state.settings.schema import ModelSchema
from dsh.state.settings.service import SettingsRefused

SECRET = "sk-hidden-0123"
Marked = Annotated[str, Field(json_schema_extra={"x-role": "secret"})]


def secrets_of(descriptor: dict[str, Any]) -> dict[tuple[str | int, ...], bool]:
    return {tuple(each["path"]): each["set"] for each in descriptor["secrets"]}


async def described(tree: Tree, model: Any, section: Any, **options: Any) -> dict[str, Any]:
    scope, _ = await tree.register("secretive", model, **options)
    await scope.replace(section)
    (found,) = tree.settings.describe(redact_secrets=True)
    shown = dumps_str(thaw(found.to_json()))
    assert SECRET not in shown
    assert SECRET not in repr(found)
    return found.to_json()


async def test_a_secret_is_taken_out_of_every_layer_and_listed(tree: Tree) -> None:
    found = await described(tree, Keyed, {"key": SECRET, "url": "u"}, base={"key": SECRET + "-b"})
    assert (found["value"], found["base"], found["user"]) == ({"url": "u"}, {}, {"url": "u"})
    assert secrets_of(found) == {("key",): True}


async def test_a_field_that_could_hold_a_secret_is_listed_when_it_does_not(tree: Tree) -> None:
    found = await described(tree, Keyed, {"url": "u"})
    assert secrets_of(found) == {("key",): False}


async def test_without_redaction_a_marked_text_is_there(tree: Tree) -> None:
    class Plain(Frozen):
        token: Marked = ""

    scope, _ = await tree.register("plain", Plain)
    await scope.update({"token": SECRET})
    (found,) = tree.settings.describe()
    assert found.value == {"token": SECRET}
    assert found.secrets is None
    assert SECRET not in repr(found)


class Route(Frozen):
    name: str = ""
    token: Marked | None = None


class Deep(Frozen):
    routes: list[Route] = Field(default_factory=list)
    by_name: dict[str, Route] = Field(default_factory=dict)
    nested: Route = Route()
    tokens: dict[str, str] = Field(default_factory=dict, json_schema_extra={"x-role": "secret"})
    each: dict[str, SecretStr] = Field(default_factory=dict)


async def test_secrets_are_found_in_lists_mappings_and_members(tree: Tree) -> None:
    section = {
        "routes": [{"name": "a", "token": SECRET}, {"name": "b"}],
        "by_name": {"x": {"token": SECRET}},
        "tokens": {"one": SECRET},
        "each": {"k": SECRET},
    }
    found = await described(tree, Deep, section)
    assert found["user"] == {
        "routes": [{"name": "a"}, {"name": "b"}],
        "by_name": {"x": {}},
        "each": {},
    }
    assert secrets_of(found) == {
        ("routes", 0, "token"): True,
        ("routes", 1, "token"): False,
        ("by_name", "x", "token"): True,
        ("nested", "token"): False,
        ("tokens",): True,
        ("each", "k"): True,
    }


class Open(Frozen):
    kind: str = ""
    text: str = ""


class Mixed(Frozen):
    either: Route | Open | None = None
    plain: int | str = 0


async def test_what_a_union_may_hide_is_taken_out_as_a_whole(tree: Tree) -> None:
    found = await described(tree, Mixed, {"either": {"name": "a", "token": SECRET}, "plain": "x"})
    assert found["user"] == {"plain": "x"}
    assert secrets_of(found) == {("either",): True}


def joined(value: Any) -> Any:
    return f"{value['user']}:{value['password']}" if isinstance(value, dict) else value


class Transformed(Frozen):
    key: SecretStr | None = None
    login: Annotated[str, BeforeValidator(joined)] = ""
    copied: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def header(self) -> str:
        return "" if self.key is None else f"Bearer {self.key.get_secret_value()}"

    @field_validator("copied")
    @classmethod
    def _copy(cls, text: str) -> str:
        return f"?key={SECRET}" if text == "copy" else text


async def test_what_a_model_makes_of_a_secret_is_taken_out_too(tree: Tree) -> None:
    found = await described(tree, Transformed, {"key": SECRET, "copied": "copy"})
    assert found["value"] == {"login": "", "copied": "[redacted]"}


def test_the_schema_shows_no_default_of_a_secret() -> None:
    class Defaulted(Frozen):
        token: Marked = SECRET
        choice: Annotated[str, Field(json_schema_extra={"x-role": "secret"}, examples=[SECRET])] = (
            ""
        )
        route: Route = Route(name="n", token=SECRET)
        size: int = 5

    public = thaw(ModelSchema(Defaulted).public)
    assert SECRET not in dumps_str(public)
    assert public["properties"]["token"]["x-role"] == "secret"
    assert public["properties"]["size"]["default"] == 5


class Picky(Frozen):
    key: SecretStr | None = Field(default=None, min_length=20)
    pin: Annotated[int, Field(json_schema_extra={"x-role": "secret"})] = 0
    note: str = ""

    @field_validator("note")
    @classmethod
    def _quote(cls, note: str) -> str:
        raise ValueError(f"cannot take {note}")


@pytest.mark.parametrize(
    ("patch", "place"),
    [
        ({"key": SECRET}, "$.key"),
        ({"key": [SECRET]}, "$.key"),
        ({"key": {"a": SECRET}}, "$.key"),
        ({"pin": SECRET}, "$.pin"),
        ({"key": SECRET * 2, "note": SECRET * 2}, "$.note"),
    ],
)
async def test_a_refusal_names_the_place_and_no_secret(tree: Tree, patch: Any, place: str) -> None:
    scope, _ = await tree.register("picky", Picky)
    with pytest.raises(SettingsRefused) as caught:
        await scope.update(patch)
    assert caught.value.path == place
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert not tree.path.exists()


async def test_nor_does_what_the_owners_check_says(tree: Tree) -> None:
    def check(value: Keyed) -> None:
        assert value.key is not None
        raise ValueError(f"{value.key.get_secret_value()} is too short")

    with pytest.raises(SettingsRefused) as caught:
        tree.settings.register("keyed", Keyed, base={"key": SECRET}, validate=check)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


async def test_nor_does_an_edit_that_does_not_fit(tree: Tree) -> None:
    await tree.register("picky", Picky)
    tree.write(f"picky:\n  pin: {SECRET}\n")
    await tree.file.reload()
    assert len(tree.reports) == 1
    assert SECRET not in tree.reports[0]


LEAVES: dict[str, tuple[Any, Any]] = {
    "number": (int, 5),
    "text": (str, "open"),
    "secret": (SecretStr, SECRET),
    "maybe secret": (SecretStr | None, SECRET),
    "marked": (Marked, SECRET),
    "list": (list[Marked], [SECRET, SECRET]),
    "mapping": (dict[str, SecretStr], {"k": SECRET}),
    "tuple": (tuple[int, Marked], [1, SECRET]),
    "union": (int | SecretStr, SECRET),
}
NAMES = st.sampled_from(["alpha", "beta", "gamma", "delta"])
FORMS = st.sampled_from(["plain", "list", "dict", "optional", "union"])
SHAPES: Any = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: st.tuples(FORMS, st.dictionaries(NAMES, inner, min_size=1, max_size=3)),
    max_leaves=5,
)


def built(shape: Any) -> tuple[Any, Any]:
    """Return the type that a shape describes, and a value of it."""
    if isinstance(shape, str):
        return LEAVES[shape]
    form, members = shape
    model, value = model_of(members)
    forms: dict[str, tuple[Any, Any]] = {
        "plain": (model, value),
        "list": (list[model], [value]),  # type: ignore[valid-type]
        "dict": (dict[str, model], {"k": value}),  # type: ignore[valid-type]
        "optional": (model | None, value),
        "union": (model | int, value),
    }
    return forms[form]


def model_of(members: dict[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
    fields = {name: built(shape) for name, shape in members.items()}
    model: type[BaseModel] = create_model(  # type: ignore[call-overload]
        "Made",
        __config__=ConfigDict(frozen=True, extra="forbid"),
        **{name: (kind, ...) for name, (kind, _) in fields.items()},
    )
    return model, {name: item for name, (_, item) in fields.items()}


@settings(deadline=None)
@given(st.dictionaries(NAMES, SHAPES, min_size=1, max_size=3))
def test_no_text_of_a_secret_comes_out_of_any_model(members: dict[str, Any]) -> None:
    model, section = model_of(members)
    schema = ModelSchema(model)
    value = model.model_validate(section).model_dump(mode="json", by_alias=True)
    (shown, user), places = schema.redact(value, section)
    text = dumps_str(thaw([shown, user, [list(each.path) for each in places]]))
    assert SECRET not in text + dumps_str(thaw(schema.public))
    assert any(place.set for place in places) is (SECRET in dumps_str(section))

    space: Namespace[Any] = Namespace(None, None, "made", model, None, "live", None)  # type: ignore[arg-type]
    for spoilt in spoilings(section):
        assert SECRET not in refusal(lambda spoilt=spoilt: space.resolve(spoilt))  # type: ignore[misc]


def refusal(call: Callable[[], object]) -> str:
    """Return all that a refusal prints; nothing when there is none."""
    try:
        call()
    except (SettingsRefused, DocumentError) as error:
        return "".join(traceback.format_exception(error))
    return ""


def spoilings(section: Any) -> list[Any]:
    """Sections that are wrong in one place each."""
    out = []
    for name, item in section.items():
        rest = {key: other for key, other in section.items() if key != name}
        out += [
            rest,
            {**rest, name: [item]},
            {**rest, name: f"{SECRET}!"},
            {**rest, f"{name}2": item},
        ]
        if isinstance(item, dict):
            out += [{**rest, name: spoilt} for spoilt in spoilings(item)]
    return out


@settings(deadline=None)
@given(st.text("ab:{}[],&*!|>'\"%@`\n -", max_size=20), st.text("ab:{}[],\n '\"", max_size=20))
def test_no_text_of_a_secret_comes_out_of_a_document_that_is_broken(
    before: str, after: str
) -> None:
    file = DocumentFile(Path("settings.yaml"), what="settings document", lock_s=0)
    assert SECRET not in refusal(lambda: file.parse(f"{before}{SECRET}{after}"))
