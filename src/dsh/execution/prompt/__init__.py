"""The prompt: who contributes to it, and what a request tells the model beside the messages."""

from __future__ import annotations

from dsh.execution.prompt.service import (
    AssembleContext,
    PromptAssembly,
    PromptContext,
    PromptError,
    PromptPart,
    PromptSection,
    SystemPrompt,
    ToolContribution,
    UnknownVariable,
    interpolate,
    join_context_sections,
    render_context_sections,
    render_context_snapshot,
    render_prompt,
)

__all__ = [
    "AssembleContext",
    "PromptAssembly",
    "PromptContext",
    "PromptError",
    "PromptPart",
    "PromptSection",
    "SystemPrompt",
    "ToolContribution",
    "UnknownVariable",
    "interpolate",
    "join_context_sections",
    "render_context_sections",
    "render_context_snapshot",
    "render_prompt",
]
