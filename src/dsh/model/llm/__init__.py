"""The model seam: `LlmRuntime` and `LlmAdapter` with their values and events.

This package loads no provider; the runtime is the plugin `dsh.model.llm.runtime`.
"""

from __future__ import annotations

from dsh.model.llm.events import (
    LLM_ADAPTERS_UPDATED,
    LLM_STREAM,
    LlmAdaptersUpdated,
    LlmStream,
    is_loop_built,
    mark_loop_built,
)
from dsh.model.llm.service import (
    DEFAULT_RETRYABLE_CODES,
    AdapterCall,
    AdapterDefaults,
    AdapterRegistration,
    AlwaysRetry,
    Backoff,
    ChunkStream,
    GenerateOptions,
    LlmAdapter,
    LlmCallConfig,
    LlmModelInfo,
    LlmProviderInfo,
    LlmRuntime,
    NormalRetry,
    PreparedLlmCall,
    ReasoningEffort,
    ReasoningInfo,
    ResolvedModelInfo,
    RetryPolicy,
    ToolSchema,
    call_config_of,
)

__all__ = [
    "DEFAULT_RETRYABLE_CODES",
    "LLM_ADAPTERS_UPDATED",
    "LLM_STREAM",
    "AdapterCall",
    "AdapterDefaults",
    "AdapterRegistration",
    "AlwaysRetry",
    "Backoff",
    "ChunkStream",
    "GenerateOptions",
    "LlmAdapter",
    "LlmAdaptersUpdated",
    "LlmCallConfig",
    "LlmModelInfo",
    "LlmProviderInfo",
    "LlmRuntime",
    "LlmStream",
    "NormalRetry",
    "PreparedLlmCall",
    "ReasoningEffort",
    "ReasoningInfo",
    "ResolvedModelInfo",
    "RetryPolicy",
    "ToolSchema",
    "call_config_of",
    "is_loop_built",
    "mark_loop_built",
]
