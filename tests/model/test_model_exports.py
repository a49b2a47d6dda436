from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from dsh.model.rehearsal import parse_script
from dsh.model.rehearsal.values import FAULT_KINDS, QUIRKS

PACKAGES = ["dsh.model.llm", "dsh.model.rehearsal", "dsh.control.retry", "dsh.testing.provider"]
PAGE = Path(__file__).parents[2] / "docs" / "rehearsal.md"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_of_a_package_are_sorted_and_there(package: str) -> None:
    module = importlib.import_module(package)
    order = sorted(module.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert module.__all__ == order
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_page_on_scripts_has_an_example_that_loads() -> None:
    yaml: Any = importlib.import_module("yaml")
    example = re.search(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert example is not None
    script = parse_script(yaml.safe_load(example[1]))
    assert script.title == "Repair a failing test"


@pytest.mark.parametrize("word", [*FAULT_KINDS, *QUIRKS])
def test_the_page_on_scripts_names_every_fault_and_quirk(word: str) -> None:
    assert re.search(rf"`{word}\b", PAGE.read_text("utf-8"))
