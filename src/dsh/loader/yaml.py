"""The YAML dialect of configuration: JSON's types, and ``!!js`` for expressions.

``yes``, ``on`` and dates stay texts. Keys are texts and unique. Aliases are copied, so that
values never share a container. PyYAML is imported when the first file is read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from dsh.loader.errors import ConfigFileError
from dsh.loader.expr import JS_TAG, Expr
from dsh.loader.reading import read_bounded

MAX_BYTES: Final = 8 << 20
"""Largest file that is read."""

MAX_NODES: Final = 200_000
"""Most values one document may hold, aliases counted each time."""

MAX_NESTING: Final = 100
"""How deep a document may nest."""

_SCALARS: Final = frozenset(("null", "bool", "int", "float", "str"))
_STANDARD: Final = "tag:yaml.org,2002:"
_NULL: Final = re.compile(r"~|null|Null|NULL|")
_BOOL: Final = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT: Final = re.compile(r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)(?<!_)")
_FLOAT: Final = re.compile(
    r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9_]+(?:[eE][-+]?[0-9]+)?)(?<!_)"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_UNPRINTABLE: Final = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)
_REWORDED: Final = {
    "but found another document": "the file holds more than one document; keep one",
    "second occurrence": "this anchor is there twice; give each its own name",
    "found undefined alias": "no anchor of this name stands before it",
}
_loader_class: Any = None


def load_yaml(text: str, path: str, *, what: str = "config file") -> Any:
    """Parse one document.

    Args:
        text: The document; a byte order mark in front is ignored.
        path: How errors name the file.
        what: What errors call the file.

    Raises:
        ConfigFileError: it is not YAML of this dialect; has the line and column.
    """
    import yaml

    text = text.removeprefix("\ufeff")
    loader: Any = None
    try:
        loader = _loader(yaml)(text)
        node = loader.get_single_node()
        return None if node is None else _Builder(path, what).build(node, 0)
    except yaml.YAMLError as error:
        raise _problem(error, text, path, what) from error
    except UnicodeEncodeError as error:
        raise ConfigFileError("parse", path, "a lone surrogate", what=what) from error
    except RecursionError as error:
        raise ConfigFileError("parse", path, "nested too deeply", what=what) from error
    finally:
        if loader is not None:
            loader.dispose()


def read_yaml(path: Path, *, what: str = "config file", pipe: bool = False) -> Any:
    """Read and parse one file.

    Args:
        path: The file.
        what: What errors call it.
        pipe: It may be one, which is waited for.

    Raises:
        ConfigFileError: it cannot be read or parsed.
        FileNotFoundError: there is no such file.
    """
    return load_yaml(read_text(path, what=what, pipe=pipe), str(path), what=what)


def read_text(path: Path, *, what: str = "config file", pipe: bool = False) -> str:
    """Read one UTF-8 file; arguments as those of `read_yaml`.

    Raises:
        ConfigFileError: it is a directory, a pipe, a link to nothing, unreadable, too large, or
            not UTF-8.
        FileNotFoundError: there is no such file.
    """
    try:
        data = read_bounded(path, MAX_BYTES + 1, pipe=pipe)
        if len(data) > MAX_BYTES:
            raise ConfigFileError("read", str(path), f"larger than {MAX_BYTES} bytes", what=what)
        return data.decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            problem = "the link leads to no file"
            raise ConfigFileError("read", str(path), problem, what=what) from error
        raise FileNotFoundError(str(path)) from error
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise ConfigFileError("read", str(path), problem, what=what) from error
    except UnicodeDecodeError as error:
        raise _not_utf8(error, path, what) from error


def plain_kind(text: str) -> str:
    """Return what an unquoted scalar means: ``null``, ``bool``, ``int``, ``float`` or ``str``."""
    for kind, pattern in (("null", _NULL), ("bool", _BOOL), ("int", _INT), ("float", _FLOAT)):
        if pattern.fullmatch(text) is not None:
            return kind
    return "str"


def _loader(yaml: Any) -> Any:
    """Return the document reader: libyaml's where it is installed, else PyYAML's own."""
    global _loader_class  # keeps PyYAML off the import path
    if _loader_class is not None:
        return _loader_class

    class JsonResolver(yaml.resolver.BaseResolver):  # type: ignore[misc]
        def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
            if kind is yaml.ScalarNode:
                return _STANDARD + (plain_kind(value) if implicit[0] else "str")
            return _STANDARD + ("seq" if kind is yaml.SequenceNode else "map")

    parts: tuple[Any, ...]
    if yaml.__with_libyaml__:
        from yaml.cyaml import CParser  # type: ignore[attr-defined]

        class Fast(CParser, JsonResolver):
            def __init__(self, text: str) -> None:
                CParser.__init__(self, text)
                JsonResolver.__init__(self)

        _loader_class = Fast
        return Fast
    parts = (yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser, yaml.composer.Composer)

    class Portable(*parts, JsonResolver):  # type: ignore[misc]
        def __init__(self, text: str) -> None:
            parts[0].__init__(self, text)
            for part in (*parts[1:], JsonResolver):
                part.__init__(self)

        def dispose(self) -> None:
            yaml.parser.Parser.dispose(self)

    _loader_class = Portable
    return Portable


class _Builder:
    """Turn a node graph into plain data, bounded and detached."""

    def __init__(self, path: str, what: str) -> None:
        self._path, self._what = path, what
        self._count = 0

    def build(self, node: Any, depth: int) -> Any:
        self._count += 1
        if depth > MAX_NESTING or self._count > MAX_NODES:
            self._refuse(node, "the document is too deep or too large")
        kind = node.tag.removeprefix(_STANDARD)
        if node.id == "mapping" and kind == "map":
            return self._mapping(node, depth)
        if node.id == "sequence" and kind == "seq":
            return [self.build(item, depth + 1) for item in node.value]
        if node.id == "scalar" and (kind in _SCALARS or node.tag == JS_TAG):
            return self._scalar(node, kind)
        if node.tag == JS_TAG:
            return self._refuse(node, "!!js takes a text; quote the expression")
        return self._refuse(node, f"unknown tag {node.tag[:60]!r}")

    def _mapping(self, node: Any, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar" or key_node.tag == JS_TAG:
                self._refuse(key_node, "a key must be a plain text")
            key = key_node.value
            if key in result:
                self._refuse(key_node, f"duplicate key {key[:60]!r}")
            result[key] = self.build(value_node, depth + 1)
        return result

    def _scalar(self, node: Any, kind: str) -> Any:
        text = node.value
        if node.tag == JS_TAG:
            if not text.strip():
                self._refuse(node, "!!js needs an expression")
            return Expr(text)
        if kind == "str":
            return text
        if plain_kind(text) != kind and not (kind == "float" and plain_kind(text) == "int"):
            self._refuse(node, f"the value does not fit its tag {node.tag[:60]!r}")
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        return _integer(text) if kind == "int" else _floating(text)

    def _refuse(self, node: Any, problem: str) -> Any:
        mark = node.start_mark
        raise ConfigFileError(
            "parse",
            self._path,
            problem,
            what=self._what,
            line=mark.line + 1,
            column=mark.column + 1,
        )


def _integer(text: str) -> int | float:
    digits = text.replace("_", "")
    body = digits.lstrip("+-")
    if len(body) > 300:
        return float(digits) if body.isdigit() else float("inf")
    value = int(body, 0) if body[:2] in {"0b", "0o", "0x"} else int(body)
    return -value if digits.startswith("-") else value


def _floating(text: str) -> float:
    lowered = text.replace("_", "").lower()
    return float(lowered.replace(".inf", "inf").replace(".nan", "nan"))


def _problem(error: Any, text: str, path: str, what: str) -> ConfigFileError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
    if mark is not None:
        line, column = mark.line + 1, mark.column + 1
    elif (found := _UNPRINTABLE.search(text)) is not None:
        # libyaml does not say where.
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        problem = f"the character U+{ord(found[0]):04X} is not allowed; leave it out or escape it"
    else:
        return ConfigFileError("parse", path, str(problem), what=what)
    problem = next((new for old, new in _REWORDED.items() if problem.startswith(old)), problem)
    if "cannot start any token" in problem:
        problem = _bad_start(text, line, column)
    return ConfigFileError("parse", path, str(problem), what=what, line=line, column=column)


def _bad_start(text: str, line: int, column: int) -> str:
    lines = text.splitlines()
    char = lines[line - 1][column - 1 : column] if line <= len(lines) else ""
    if char == "\t":
        return "a tab cannot indent; use blanks"
    return f"a value cannot begin with {char!r}; put the text in quotes"


def _not_utf8(error: UnicodeDecodeError, path: Path, what: str) -> ConfigFileError:
    data, at = error.object, error.start
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        problem = "the file is UTF-16; save it as UTF-8"
        return ConfigFileError("read", str(path), problem, what=what, line=1, column=1)
    start = data.rfind(b"\n", 0, at) + 1
    return ConfigFileError(
        "read",
        str(path),
        f"byte {at} is not UTF-8; save the file as UTF-8",
        what=what,
        line=data.count(b"\n", 0, at) + 1,
        column=len(data[start:at].decode("utf-8", "replace")) + 1,
    )
