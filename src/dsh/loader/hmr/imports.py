"""What a module's source imports, whether at its top or inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

_BY_NAME: Final = frozenset({"import_module", "__import__"})


def imported_names(source: bytes | str, package: str) -> frozenset[str]:
    """Return every name that the source may import as a module.

    ``from a import b`` gives both ``a`` and ``a.b``, for ``b`` may be either. Blocks that only
    type checkers read are left out. Names that are computed cannot be found.

    Args:
        source: The module's text.
        package: What its relative names are relative to.

    Raises:
        SyntaxError: the text is no Python.
    """
    found: set[str] = set()
    for node in _runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.update([alias.name] if alias.asname else _with_parents(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            if base is not None:
                found.add(base)
                found.update(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call) and (name := _by_name(node)) is not None:
            found.add(name)
    return frozenset(found)


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            stack.extend(node.orelse)
        else:
            stack.extend(ast.iter_child_nodes(node))


def _is_type_checking(test: ast.expr) -> bool:
    name = getattr(test, "id", None) or getattr(test, "attr", None)
    return name == "TYPE_CHECKING"


def _with_parents(name: str) -> list[str]:
    # ``import a.b`` binds ``a``, so that whoever does it depends on ``a``, too.
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _absolute(name: str, level: int, package: str) -> str | None:
    if not level:
        return name
    parents = package.split(".")
    if not package or level > len(parents):
        return None
    return ".".join([*parents[: len(parents) - level + 1], *([name] if name else [])])


def _by_name(call: ast.Call) -> str | None:
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    first = call.args[0] if call.args else None
    if name in _BY_NAME and isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value.lstrip(".") or None
    return None
