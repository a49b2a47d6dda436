"""JSON Schema as Python type stubs.

The text is for the model to read, and is Python that parses, whatever the schemas are. No walk
uses the interpreter's stack for the depth of a schema.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

ANY = "Any"
OPEN_DICT = "dict[str, Any]"

_SCALARS = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool",
    "null": "None",
}
_BEYOND_STUBS = frozenset(
    {"$ref", "allOf", "not", "if", "patternProperties", "prefixItems", "dependentSchemas"}
)
"""Keywords with a meaning that a stub cannot tell; without it the stub would be wrong."""

_MOST_LISTS = 180
"""Python's parser gives up on more than 200 brackets inside each other."""
_MOST_BRANCHES = 100
_LONGEST_BASE = 120
_LARGEST_LITERAL = 2**63
_TAKEN = frozenset(
    {"Any", "Exception", "Literal", "NotRequired", "Protocol", "ToolCallError", "Tools"}
)
_WORD = re.compile(r"[A-Za-z0-9]+")


def is_plain_name(name: str) -> bool:
    """Whether a name can stand as an attribute in a stub and mean itself."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and unicodedata.normalize("NFKC", name) == name
        and not name.startswith("__")
    )


def camel_name(text: str) -> str:
    """Return a class name made of the letters and digits of ``text``."""
    name = "".join(word[0].upper() + word[1:] for word in _WORD.findall(text))[:_LONGEST_BASE]
    return name if name and not name[0].isdigit() else f"T{name}"[:_LONGEST_BASE]


def quoted(text: str) -> str:
    """Return a Python string literal that also survives the prompt's ``{{variables}}``."""
    return _no_braces(repr(text))


def escaped(text: str) -> str:
    """Return a text for the inside of a docstring; line breaks stay."""
    plain = text.replace("\r\n", "\n").replace("\\", "\\\\").replace('"', '\\"')
    return _no_braces("\n".join(map(_printable, plain.split("\n"))))


def comment(text: str) -> str:
    """Return a text as the inside of a comment: one line, nothing that is not printed."""
    return _no_braces(_printable(" ".join(text.split())))


def _printable(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


def _no_braces(text: str) -> str:
    return text.replace("{{", "{\\x7b")


class _Node:
    """One schema on its way to a type; ``text`` is set when its members have theirs."""

    __slots__ = ("base", "kind", "lists", "members", "required", "schema", "text")

    def __init__(self, schema: object, base: str, lists: int) -> None:
        self.schema: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
        self.base, self.lists = base, lists
        self.kind = "done" if self.schema is not schema else _kind_of(self.schema)
        self.members: dict[str, _Node] = {}
        self.required: frozenset[str] = frozenset()
        self.text = ANY


class TypeWriter:
    """Writes the classes of one SDK; every name in it is given once."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        """Class definitions; a class stands before those that use it."""
        self._given = dict.fromkeys(_TAKEN, 1)

    def type_of(self, schema: object, base: str) -> str:
        """Return the type of a schema; its classes are named after ``base``."""
        root = _Node(schema, base[:_LONGEST_BASE], 0)
        work: list[tuple[_Node, bool]] = [(root, False)]
        while work:
            node, ready = work.pop()
            if ready:
                self._finish(node)
                continue
            work.append((node, True))
            _open(node)
            work.extend((member, False) for member in reversed(list(node.members.values())))
        return root.text

    def _finish(self, node: _Node) -> None:
        if node.kind == "object":
            node.text = self._object(node)
        elif node.kind == "array":
            node.text = f"list[{node.members['items'].text if node.members else ANY}]"
        elif node.kind == "choice":
            node.text = _union(member.text for member in node.members.values())
        elif node.kind == "literal":
            node.text = _literal(node.schema) or _SCALARS.get(node.schema.get("type", ""), ANY)
        elif node.kind == "scalar":
            node.text = _SCALARS[node.schema["type"]]

    def _object(self, node: _Node) -> str:
        names = list(node.members)
        is_open = node.schema.get("additionalProperties") is not False
        if not all(map(is_plain_name, names)) or (is_open and not names):
            return OPEN_DICT
        lines = [] if names or is_open else ["    pass"]
        for name, member in node.members.items():
            if described := _description(member.schema):
                lines.append(f"    # {described}")
            text = member.text if name in node.required else f"NotRequired[{member.text}]"
            lines.append(f"    {name}: {text}")
        if is_open:
            lines.append("    # additional keys allowed")
        name = self._name(node.base)
        self.blocks.append("\n".join([f"class {name}(TypedDict):", *lines]))
        return name

    def _name(self, base: str) -> str:
        name = base
        while name in self._given:
            self._given[base] = number = self._given.get(base, 1) + 1
            name = f"{base}{number}"
        self._given[name] = 1
        return name


def _kind_of(schema: Mapping[str, Any]) -> str:
    if not _BEYOND_STUBS.isdisjoint(schema):
        return "done"
    if isinstance(schema.get("oneOf"), list) or isinstance(schema.get("anyOf"), list):
        return "choice"
    if "const" in schema or isinstance(schema.get("enum"), list):
        return "literal"
    kind = schema.get("type")
    if kind == "object" or kind == "array":
        return str(kind)
    return "scalar" if isinstance(kind, str) and kind in _SCALARS else "done"


def _open(node: _Node) -> None:
    """Make the nodes of a node's members."""
    if node.kind == "object":
        required = node.schema.get("required")
        names = required if isinstance(required, list) else []
        node.required = frozenset(name for name in names if isinstance(name, str))
        members = node.schema.get("properties")
        if isinstance(members, Mapping) and all(isinstance(name, str) for name in members):
            for name, member in members.items():
                base = (node.base + camel_name(name))[:_LONGEST_BASE]
                node.members[name] = _Node(member, base, node.lists)
    elif node.kind == "array":
        if node.lists + 1 >= _MOST_LISTS:
            node.kind = "done"
        elif "items" in node.schema:
            node.members["items"] = _Node(node.schema["items"], node.base, node.lists + 1)
    elif node.kind == "choice":
        branches = node.schema.get("oneOf") or node.schema.get("anyOf")
        if not isinstance(branches, list) or len(branches) > _MOST_BRANCHES:
            node.kind = "done"
            return
        for index, branch in enumerate(branches):
            node.members[str(index)] = _Node(branch, node.base, node.lists)


def _union(texts: Iterator[str]) -> str:
    # A union of unions is one union: each text may hold several members already.
    members = list(dict.fromkeys(texts))
    if ANY in members or not members:
        return ANY
    joined = " | ".join(members)
    return joined if joined.count(" | ") < _MOST_BRANCHES else ANY


def _literal(schema: Mapping[str, Any]) -> str | None:
    choices = [schema["const"]] if "const" in schema else schema["enum"]
    if not choices or not all(map(_is_literal, choices)):
        return None
    shown = (quoted(each) if isinstance(each, str) else repr(each) for each in choices)
    return f"Literal[{', '.join(dict.fromkeys(shown))}]"


def _is_literal(choice: object) -> bool:
    if choice is None or isinstance(choice, str | bool):
        return True
    return isinstance(choice, int) and abs(choice) < _LARGEST_LITERAL


def _description(schema: Mapping[str, Any]) -> str:
    text = schema.get("description")
    return comment(text) if isinstance(text, str) else ""
