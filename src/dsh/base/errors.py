"""The root of every error dsh raises, and total helpers that turn exceptions into text."""

from __future__ import annotations

from collections.abc import Iterator

_MAX_CHAIN = 16


class DshError(Exception):
    """A failure that dsh can name: a sentence for people and a stable code for programs.

    Attributes:
        message: What was wrong, where, and what to do.
        code: Upper-case class of the failure; callers route by it.
    """

    code: str = "ERROR"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


def message_of(error: object) -> str:
    """Return the text of an exception, or of anything raised in its place.

    Never raises: an exception whose ``__str__`` fails is described by its class.
    """
    own = _attribute(error, "message")
    if own:
        return own
    try:
        text = str(error)
    except Exception:
        return f"unprintable {type(error).__name__}"
    return text or type(error).__name__


def error_chain(error: BaseException) -> str:
    """Render an exception with its group members and causes, joined by ``: ``.

    Cycles end the walk, and a cause that repeats its wrapper word for word is left out.
    """
    parts: list[str] = []
    for text in _chain(error, set()):
        if not parts or text != parts[-1]:
            parts.append(text)
    return ": ".join(parts)


def _chain(error: BaseException, seen: set[int]) -> Iterator[str]:
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _MAX_CHAIN:
        seen.add(id(current))
        yield message_of(current)
        if isinstance(current, BaseExceptionGroup):
            for member in current.exceptions:
                yield from _chain(member, seen)
        current = current.__cause__


def _attribute(error: object, name: str) -> str | None:
    try:
        value = getattr(error, name, None)
    except Exception:
        return None
    return value if isinstance(value, str) and value else None
