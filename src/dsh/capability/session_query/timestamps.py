"""Points in time as models write them, exact to the last digit."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_FORM: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2})(?::(\d{2})(?:\.(\d+))?)?(?:(Z)|([+-])(\d{2}):(\d{2}))",
    re.ASCII,
)


def parse_instant(text: str, edge: Literal["from", "to"]) -> float:
    """Return the bound that a timestamp is, in milliseconds since the epoch.

    Events have whole milliseconds. A timestamp between two of them becomes a number between them,
    so that comparing with it is exact.

    Args:
        text: ``YYYY-MM-DDTHH:MM``, then seconds and their fraction if wanted, then ``Z`` or
            an offset.
        edge: Which end of a span it is.

    Raises:
        ValueError: it has another form, or there is no such time.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no timestamp; write it as 2026-01-31T18:30Z "
            "or 2026-01-31T18:30:05.25+01:00"
        )
    try:
        whole_ms = _whole_ms(match)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not in the calendar: {error}") from None
    fraction = match[7] or ""
    ms = whole_ms + int(fraction[:3].ljust(3, "0"))
    if not fraction[3:].strip("0"):
        return ms
    return math.nextafter(ms, math.inf) if edge == "from" else math.nextafter(ms + 1, -math.inf)


def show_instant(time_ms: float) -> str:
    """Return a time in UTC, to the millisecond."""
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms since 1970"
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _whole_ms(match: re.Match[str]) -> int:
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    offset = timedelta(0)
    if match[8] is None:
        hours, minutes = int(match[10]), int(match[11])
        if hours > 23 or minutes > 59:
            raise ValueError("the offset must be less than a day")
        offset = timedelta(hours=hours, minutes=minutes) * (-1 if match[9] == "-" else 1)
    local = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    return (local - _EPOCH - offset) // _MILLISECOND
