"""Validation of what adapters say about models, and the defaults they give to calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from dsh.base.json import snapshot
from dsh.model.failures import LlmError
from dsh.model.llm.service import (
    AdapterDefaults,
    LlmCallConfig,
    LlmModelInfo,
    ReasoningInfo,
    ResolvedModelInfo,
)

__all__ = ["fill_defaults", "validate_catalog", "validate_model_info"]


def validate_catalog(provider: str, models: Sequence[LlmModelInfo]) -> list[LlmModelInfo]:
    """Return the list of an adapter.

    Raises:
        LlmError: ``INVALID_CATALOG``, an entry is of another provider, has no id or name, or an
            id comes twice.
    """
    seen: set[str] = set()
    for entry in models:
        if entry.provider != provider or not entry.id or not entry.name or entry.id in seen:
            raise LlmError(
                f"the model list of provider {provider!r} has a bad or repeated entry: {entry!r}",
                code="INVALID_CATALOG",
            )
        seen.add(entry.id)
    return list(models)


def validate_model_info(provider: str, model: str, info: ResolvedModelInfo) -> ResolvedModelInfo:
    """Return what an adapter said of a model.

    Raises:
        LlmError: ``INVALID_MODEL_INFO``, ``INVALID_MODEL_CONTEXT``, ``INVALID_MODEL_MAX_TOKENS``
            or ``INVALID_MODEL_REASONING``.
    """
    place = f"model {model!r} of provider {provider!r}"
    if info.provider != provider or info.id != model or not info.name:
        raise LlmError(f"{place} is described as {info!r}", code="INVALID_MODEL_INFO")
    if not _positive(info.context_window):
        raise LlmError(
            f"{place} has a context window of {info.context_window!r}",
            code="INVALID_MODEL_CONTEXT",
        )
    if not _positive(info.default_max_tokens):
        raise LlmError(
            f"{place} has an output limit of {info.default_max_tokens!r}",
            code="INVALID_MODEL_MAX_TOKENS",
        )
    if info.reasoning is not None and not _sound(info.reasoning):
        raise LlmError(
            f"{place} has unusable reasoning efforts: {info.reasoning!r}",
            code="INVALID_MODEL_REASONING",
        )
    return info


def fill_defaults(
    config: LlmCallConfig, info: ResolvedModelInfo
) -> tuple[LlmCallConfig, AdapterDefaults]:
    """Return ``config`` with what the model gives to calls that leave it open, and what that was.

    Raises:
        LlmError: ``UNSUPPORTED_REASONING_EFFORT``, the model does not offer the effort asked for.
    """
    filled: dict[str, Any] = dict(config)
    defaults: AdapterDefaults = {}
    effort = config.get("reasoningEffort")
    if effort is not None:
        _require_effort(effort, info)
    elif info.reasoning is not None and info.reasoning.default_effort is not None:
        filled["reasoningEffort"] = info.reasoning.default_effort
        defaults["reasoningEffort"] = True
    if config.get("maxTokens") is None and info.default_max_tokens is not None:
        filled["maxTokens"] = info.default_max_tokens
        defaults["maxTokens"] = True
    return cast("LlmCallConfig", snapshot(filled)), cast("AdapterDefaults", snapshot(defaults))


def _require_effort(effort: str, info: ResolvedModelInfo) -> None:
    offered = [level.id for level in info.reasoning.efforts] if info.reasoning else []
    if effort in offered:
        return
    choice = f"choose one of: {', '.join(offered)}" if offered else "it takes none"
    raise LlmError(
        f"model {info.id!r} of provider {info.provider!r} does not offer reasoning effort "
        f"{effort!r}; {choice}",
        code="UNSUPPORTED_REASONING_EFFORT",
    )


def _positive(value: object) -> bool:
    return value is None or (type(value) is int and value > 0)


def _sound(reasoning: ReasoningInfo) -> bool:
    ids = [level.id for level in reasoning.efforts]
    if not ids or not all(ids) or len(set(ids)) != len(ids):
        return False
    return reasoning.default_effort is None or reasoning.default_effort in ids
