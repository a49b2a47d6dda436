"""JSON as data: lossless snapshots, frozen containers, one encoder and one decoder.

Logged data is made of `FrozenDict` and `FrozenList`: real ``dict`` and ``list`` objects, so
that every encoder and ``isinstance`` check works, whose mutators refuse. How deep a value may be
nested is a question of memory alone.
"""

from dsh.base.json.snapshots import freeze, snapshot
from dsh.base.json.text import canonical, dumps, dumps_str, loads, pretty
from dsh.base.json.values import (
    FrozenDict,
    FrozenList,
    JsonObject,
    JsonValue,
    NotLossless,
    equal,
    thaw,
)

__all__ = [
    "FrozenDict",
    "FrozenList",
    "JsonObject",
    "JsonValue",
    "NotLossless",
    "canonical",
    "dumps",
    "dumps_str",
    "equal",
    "freeze",
    "loads",
    "pretty",
    "snapshot",
    "thaw",
]
