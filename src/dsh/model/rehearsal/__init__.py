"""Rehearsal scripts: what a scripted model says, what it expects, and how it misbehaves.

One format for the rehearsal adapter and for the HTTP provider of `dsh.testing.provider`.
Standard library only, but for YAML.
"""

from __future__ import annotations

from dsh.model.rehearsal.play import Line, LineCall, Play, Seen, SeenMessage
from dsh.model.rehearsal.reader import ScriptError
from dsh.model.rehearsal.script import load_script, parse_script
from dsh.model.rehearsal.values import (
    Conversation,
    Expectation,
    Fault,
    Matcher,
    Reply,
    Script,
    ScriptedCall,
)

__all__ = [
    "Conversation",
    "Expectation",
    "Fault",
    "Line",
    "LineCall",
    "Matcher",
    "Play",
    "Reply",
    "Script",
    "ScriptError",
    "ScriptedCall",
    "Seen",
    "SeenMessage",
    "load_script",
    "parse_script",
]
