"""The page about plugins says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from dsh.loader import bundle
from dsh.loader.api import API_VERSION
from dsh.product.plugins.words import VERBS
from dsh.testing import author

PAGE = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text()


def test_the_page_names_the_api_version() -> None:
    assert f"This dsh has API {API_VERSION}:" in PAGE


def test_the_page_names_every_verb_and_every_field_of_a_bundle() -> None:
    rows = set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE))
    assert rows >= {*VERBS, *bundle._FIELDS} - {"new"}
    assert "dsh plugin new" in PAGE


def test_the_page_names_what_authors_test_with() -> None:
    helpers = {each for each in author.__all__ if each[0].islower()}
    assert {each for each in helpers if f"author.{each}(" not in PAGE} == set()
