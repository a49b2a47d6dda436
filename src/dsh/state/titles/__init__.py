"""Titles of sessions: made from the first words, by a model, or given by the user."""

from dsh.state.titles.events import (
    SESSION_TITLE,
    SESSION_TITLE_LLM_REQUEST,
    SessionTitleData,
    SessionTitleLlmRequest,
)
from dsh.state.titles.service import (
    SessionTitleError,
    SessionTitleInvalidError,
    SessionTitleProvider,
    SessionTitleService,
    TitleRequest,
    TitleResult,
)
from dsh.state.titles.text import (
    TitleMessage,
    collect_session_title_messages,
    fallback_session_title,
    fold_session_title,
    latest_session_title,
    normalize_session_title,
    truncate_title_utf8,
)

__all__ = [
    "SESSION_TITLE",
    "SESSION_TITLE_LLM_REQUEST",
    "SessionTitleData",
    "SessionTitleError",
    "SessionTitleInvalidError",
    "SessionTitleLlmRequest",
    "SessionTitleProvider",
    "SessionTitleService",
    "TitleMessage",
    "TitleRequest",
    "TitleResult",
    "collect_session_title_messages",
    "fallback_session_title",
    "fold_session_title",
    "latest_session_title",
    "normalize_session_title",
    "truncate_title_utf8",
]
