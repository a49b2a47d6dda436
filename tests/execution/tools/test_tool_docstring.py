from __future__ import annotations

from dsh.execution.tools.docstring import parse_docstring


def test_prose_and_parameters_are_split() -> None:
    prose, described = parse_docstring(
        """Read a file.

        Long
        prose.

        - kept
        - as a list

        Args:
            path: Where it is,
                relative to the workspace.
            limit (int): How much.
            **rest: More.

        Returns:
            path: not a parameter.
        """
    )
    assert prose == "Read a file.\n\nLong prose.\n\n- kept\n- as a list"
    assert described == {
        "path": "Where it is, relative to the workspace.",
        "limit": "How much.",
        "rest": "More.",
    }


def test_no_docstring_says_nothing() -> None:
    assert parse_docstring(None) == ("", {})
