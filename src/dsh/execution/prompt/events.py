"""Events of prompt assembly."""

from __future__ import annotations

from dsh.base.values import record, value
from dsh.execution.prompt.service import AssembleContext, PromptAssembly
from dsh.kernel import Emit, Waterfall


@record
class PromptAssembling:
    """A prompt is being assembled; listeners return the assembly to use."""

    assembly: PromptAssembly
    context: AssembleContext


@value
class PromptChanged:
    """Some contribution was added or removed."""


SYSTEM_PROMPT_ASSEMBLE = Waterfall[PromptAssembling, PromptAssembly]("system-prompt/assemble")
"""Rewrite an assembly; scoped by ``context.scope``. The result is used as it is."""

SYSTEM_PROMPT_CHANGE = Emit[PromptChanged]("system-prompt/change")
"""Contributions changed; a listener that raises rolls the change back."""
