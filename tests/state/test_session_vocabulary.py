from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import TypedDict

import pytest

import dsh
from dsh.state.session.events import CORE_EVENT_TYPES, EventType
from dsh.state.session.vocabulary import (
    CORE_SESSION_EVENT_TYPES,
    KNOWN_SESSION_EVENT_TYPES,
    SURFACE_EVENT_TYPES,
)


class Note(TypedDict):
    text: str


def declared_event_types() -> Iterator[EventType[Note]]:
    for found in pkgutil.walk_packages(dsh.__path__, "dsh."):
        if found.name.endswith(".events"):
            module = importlib.import_module(found.name)
            yield from (item for item in vars(module).values() if isinstance(item, EventType))


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
