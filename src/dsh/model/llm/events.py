"""Bus events of the model seam, and the mark of requests that the agent loop built."""

from __future__ import annotations

from weakref import WeakSet

from dsh.base.values import record, value
from dsh.kernel import Emit, Waterfall
from dsh.model.llm.service import ChunkStream, GenerateOptions

__all__ = [
    "LLM_ADAPTERS_UPDATED",
    "LLM_STREAM",
    "LlmAdaptersUpdated",
    "LlmStream",
    "is_loop_built",
    "mark_loop_built",
]


@record
class LlmStream:
    """A model call is about to be made.

    A listener may return its own chunks, wrap those of ``next()``, or put other ``options`` in
    place before it calls ``next()``. Options that the agent loop built are final: only read them.
    """

    options: GenerateOptions


LLM_STREAM = Waterfall[LlmStream, ChunkStream]("llm/stream")
"""Around every model call. The innermost part picks the adapter, after the listeners ran."""


@value
class LlmAdaptersUpdated:
    """The set of providers changed; ask the runtime what it is now."""


LLM_ADAPTERS_UPDATED = Emit[LlmAdaptersUpdated]("llm/adapters-updated", errors="contain")
"""After each change of the registered routes, disposal included."""

_loop_built: WeakSet[GenerateOptions] = WeakSet()


def mark_loop_built(options: GenerateOptions) -> GenerateOptions:
    """Remember, by identity, that the agent loop built ``options``; return them."""
    _loop_built.add(options)
    return options


def is_loop_built(options: GenerateOptions) -> bool:
    """Say whether the agent loop built exactly this object."""
    return options in _loop_built
