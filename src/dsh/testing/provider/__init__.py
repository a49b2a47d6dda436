"""A scripted model provider over real HTTP: ``python -m dsh.testing.provider --script FILE``.

It speaks the streaming chat-completions dialect of DeepSeek and plays rehearsal scripts; see
``docs/rehearsal.md``. Tests run it as a child process with `start_provider`.
"""

from __future__ import annotations

from dsh.testing.provider.child import Provider, start_provider

__all__ = ["Provider", "start_provider"]
