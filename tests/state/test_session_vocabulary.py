from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict, is_typeddict

import pytest

import dsh
from dsh.state.session.events import CORE_EVENT_TYPES, EventType
from dsh.state.session.payloads import fields_of, payload_problem
from dsh.state.session.vocabulary import (
    CORE_SESSION_EVENT_TYPES,
    KNOWN_SESSION_EVENT_TYPES,
    SURFACE_EVENT_TYPES,
)


class Note(TypedDict):
    text: str


OURS = {
    "budget/limit",
    "budget/reached",
    "budget/spent",
    "fs/observation",
    "stuck/detected",
}
"""Types that the shared format does not have."""


def declared_event_types() -> Iterator[EventType[Any]]:
    for found in pkgutil.walk_packages(dsh.__path__, "dsh."):
        if found.name.endswith(".events") or ".session.declared." in found.name:
            module = importlib.import_module(found.name)
            yield from (item for item in vars(module).values() if isinstance(item, EventType))


def test_every_type_of_the_format_is_declared_and_nothing_else_but_ours() -> None:
    names = {declared.name for declared in declared_event_types()}
    assert names == KNOWN_SESSION_EVENT_TYPES | OURS


def test_each_type_is_declared_once() -> None:
    objects = {id(declared): declared.name for declared in declared_event_types()}
    assert [name for name, count in Counter(objects.values()).items() if count > 1] == []


def test_every_declared_payload_can_be_checked() -> None:
    for declared in declared_event_types():
        assert all(map(is_typeddict, declared.payloads)), declared
        assert payload_problem(declared, {"no-such-field": 1}) is not None, declared


def test_every_type_is_documented_with_its_fields() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([^`]+)` \| (`\{.*?\}`) \| ", page, re.MULTILINE))
    assert rows == {
        declared.name: " or ".join(f"`{{{shape(kind)}}}`" for kind in declared.payloads)
        for declared in declared_event_types()
    }


def shape(kind: Any) -> str:
    fields = fields_of(kind).items()
    return ", ".join(name if required else f"{name}?" for name, (_, required) in fields)


def test_the_format_knows_48_types_13_of_them_its_own() -> None:
    assert len(KNOWN_SESSION_EVENT_TYPES) == 48
    assert len(CORE_SESSION_EVENT_TYPES) == 13
    assert CORE_EVENT_TYPES.keys() == CORE_SESSION_EVENT_TYPES < KNOWN_SESSION_EVENT_TYPES


def test_the_core_declares_exactly_three_surface_types() -> None:
    surface = {name for name, declared in CORE_EVENT_TYPES.items() if declared.surface}
    assert surface == SURFACE_EVENT_TYPES == {"user/message", "assistant/message", "tool/result"}


def test_every_declared_type_is_of_the_format_or_ignorable() -> None:
    declared = {found.name: found for found in declared_event_types()}
    assert declared.keys() >= CORE_SESSION_EVENT_TYPES
    for name, found in declared.items():
        assert found.ignorable is (name not in KNOWN_SESSION_EVENT_TYPES)


def test_a_type_that_other_readers_do_not_know_must_be_ignorable() -> None:
    with pytest.raises(ValueError, match="ignorable=True"):
        EventType("acme/note", Note)


def test_a_type_of_the_format_must_not_be_ignorable() -> None:
    with pytest.raises(ValueError, match="drop ignorable=True"):
        EventType("plan/mode", Note, ignorable=True)


@pytest.mark.parametrize(
    "name", ["", "session", "text-chunks", "reasoning-chunks", "tool-call-chunks"]
)
def test_names_that_mean_something_on_disk_cannot_be_event_types(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name an event type"):
        EventType(name, Note, ignorable=True)


def test_the_folds_need_no_store() -> None:
    code = (
        "import sys; from dsh.state.session import derive_event_message, fold_surface; "
        "loaded = {'dsh.state.session.store', 'dsh.state.persistence', 'pydantic'}; "
        "assert not loaded & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
