"""What the model reads of a program: its logs, then its result."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.execution.tools.code.rendering import NOTHING, render_output


@pytest.mark.parametrize(
    ("logs", "result", "text"),
    [
        ([], None, NOTHING),
        ([], "plain\ntext", "plain\ntext"),
        (["a", "b"], None, "a\nb"),
        (["a"], "b", "a\nb"),
        ([], 0, "0"),
        ([], False, "false"),
        ([], [], "[]"),
        ([], {}, "{}"),
        ([], {"a": 1, "b": [True, None]}, '{\n  "a": 1,\n  "b": [\n    true,\n    null\n  ]\n}'),
        ([], {"ü": "x"}, '{\n  "ü": "x"\n}'),
    ],
)
def test_logs_come_first_and_the_result_is_pretty(logs: list[str], result: Any, text: str) -> None:
    assert render_output(logs, result) == text


def test_what_lies_deeper_than_ten_characters_is_compact() -> None:
    value: Any = {"deep": [1, {"x": 2}]}
    for _ in range(5):
        value = [value]
    assert render_output([], value).splitlines() == [
        "[", "  [", "    [", "      [", "        [", '          {"deep":[1,{"x":2}]}',
        "        ]", "      ]", "    ]", "  ]", "]",
    ]  # fmt: skip


def test_ten_thousand_levels_are_rendered() -> None:
    value: Any = 1
    for _ in range(10_000):
        value = [value]
    assert render_output([], value).count("[") == 10_000
