"""Is an agent stuck? Follows what it did, without any knowledge of logs or plugins.

What can be told from patience: work makes results differ, and waiting takes time. So only calls
with the same arguments *and* the same result count as repeated, and a call that waits starts
everything over, as does news from outside.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from dsh.base.json import JsonValue, canonical, equal, loads
from dsh.base.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dsh.control.stuck.events import StuckCode

LONGEST_CYCLE: Final = 4
"""Of how many calls, or replies, a repeated round has at most."""

_FAILURES_HELD: Final = 16
"""Calls and errors of one row of failures that are told apart."""
_ALIKE: Final = 0.9
_CHARS_COMPARED: Final = 4000
_SHOWN: Final = 120
_WORD: Final = r"[\u3040-\u30ff\u4e00-\u9fff]|[^\W\d_]+"
"""Scripts without spaces count by the letter. Compiled when it is needed, which is seldom."""


@value
class Thresholds:
    """When to act, in repetitions."""

    nudge: int
    stop: int
    patience_ms: float
    """A call that takes this long is a wait."""


@value
class Finding:
    """What is wrong, and what to do about it."""

    code: StuckCode
    times: int
    subject: str
    stop: bool
    """End the turn; otherwise the agent is to be told."""


class Detector:
    """Follows one agent.

    Holds the last few calls and replies, whatever the length of the session.

    Args:
        thresholds: When to act.
        polls: Whether a call, by tool and arguments, only waits for something outside. It is
            asked when a call looks like a repetition.

    Attributes:
        owes_reply: Whether calls came last, so that the model is going to be asked again.
    """

    __slots__ = (
        "_calls",
        "_empty",
        "_failures",
        "_matches",
        "_polls",
        "_said",
        "_similar",
        "_told",
        "owes_reply",
        "thresholds",
    )

    def __init__(
        self, thresholds: Thresholds, polls: Callable[[str, str], bool] = lambda tool, args: False
    ) -> None:
        self.thresholds = thresholds
        self._polls = polls
        self.start_over()

    def start_over(self) -> None:
        """Time went by, or somebody else spoke."""
        self._calls: deque[_Call] = deque(maxlen=LONGEST_CYCLE)
        self._matches = [0] * LONGEST_CYCLE
        self._failures = _Failures()
        self._empty = self._similar = 0
        self._said: deque[str] = deque(maxlen=LONGEST_CYCLE)
        self._told: dict[StuckCode, int] = {}
        self.owes_reply = False

    def called(
        self,
        tool: str,
        arguments: str,
        content: JsonValue,
        *,
        failed: bool = False,
        took_ms: float = 0,
    ) -> None:
        """Take a call that has its result.

        Args:
            tool: Its name.
            arguments: As the model wrote them.
            content: What the model reads.
            failed: Whether that is an error.
            took_ms: From the call to the result.
        """
        if took_ms >= self.thresholds.patience_ms:
            self.start_over()
        else:
            if self._said or self._empty:
                self._empty = self._similar = 0
                self._said.clear()
            call = _Call(tool, arguments, content, failed)
            again = self._matched(call)
            if failed:
                again = self._failures.push(call) or again
            elif self._failures.count:
                self._failures = _Failures()
            if again and self._polls(tool, arguments):
                self.start_over()
            else:
                self._calls.append(call)
        self.owes_reply = True

    def replied(self, text: str) -> None:
        """Take a reply, or a turn that failed, without calls; the text may be empty."""
        self.owes_reply = False
        if not text or text.isspace():
            self._empty += 1
            return
        self._empty = 0
        again = any(_alike(text, said) for said in self._said)
        self._similar = self._similar + 1 if again else 1
        self._said.append(text)

    def told(self) -> None:
        """Take note that the agent was told of all that is wrong now."""
        for code, count, _ in self._counts():
            if count >= self.thresholds.nudge:
                self._told.setdefault(code, count)

    def finding(self) -> Finding | None:
        """Return what to do now: a stop before a nudge, nothing when all is well."""
        least = self.thresholds.nudge
        if (
            self._empty < least
            and self._similar < least
            and self._failures.count < least
            and max(self._matches) < least - 1
        ):
            if self._told:
                self._told = {}
            return None
        # Whoever was told late, after many calls of one reply, has as long to mend its ways.
        grace = self.thresholds.stop - least
        wrong = [each for each in self._counts() if each[1] >= least]
        self._told = {code: self._told[code] for code, _, _ in wrong if code in self._told}
        for code, count, subject in wrong:
            if code in self._told and count >= self._told[code] + grace:
                return Finding(code, count, subject, stop=True)
        for code, count, subject in wrong:
            if code not in self._told:
                return Finding(code, count, subject, stop=False)
        return None

    def _matched(self, call: _Call) -> bool:
        """Count the calls in a row that are like those one, two, ... before them."""
        matches, matched = self._matches, False
        for index, earlier in enumerate(reversed(self._calls)):
            # Nearly always the results differ, and == says so at once; but it takes True for 1.
            if (
                earlier.content == call.content
                and earlier.failed == call.failed
                and earlier.asks_as(call)
                and equal(earlier.content, call.content)
            ):
                matches[index] += 1
                matched = True
            elif matches[index]:
                matches[index] = 0
        return matched

    def _counts(self) -> Iterable[tuple[StuckCode, int, str]]:
        """Return each way of being stuck that has begun, the most telling first."""
        if self._failures.count > 1:
            yield "STUCK_ERROR", self._failures.count, self._failures.subject
        for period, matches in enumerate(self._matches, 1):
            if (rounds := matches // period + 1) > 1:
                tools = ", ".join(call.tool for call in list(self._calls)[-period:])
                yield _code_of(period), rounds, tools[:_SHOWN]
        if self._empty:
            yield "STUCK_EMPTY", self._empty, "no words and no calls"
        if self._similar > 1:
            yield "STUCK_MONOLOGUE", self._similar, self._said[-1].strip()[:_SHOWN]


class _Call:
    __slots__ = ("arguments", "content", "failed", "tool")

    def __init__(self, tool: str, arguments: str, content: JsonValue, failed: bool) -> None:
        self.tool, self.arguments, self.content, self.failed = tool, arguments, content, failed

    def asks_as(self, other: _Call) -> bool:
        """Whether both calls ask for the same."""
        if self.tool != other.tool:
            return False
        if self.arguments == other.arguments:
            return True
        try:
            return equal(loads(self.arguments), loads(other.arguments))
        except ValueError:
            return False

    def text(self) -> str:
        """Return the first words of the result."""
        for block in self.content if isinstance(self.content, list) else ():
            if isinstance(block, dict) and isinstance(text := block.get("text"), str):
                return text
        return ""


class _Failures:
    """Failures without a success between them: how often one call failed, or one error came."""

    __slots__ = ("_seen", "count", "subject")

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self.count = 0
        self.subject = ""
        """The failure that came most often."""

    def push(self, call: _Call) -> bool:
        """Count a failed call; say whether it is like an earlier one."""
        seen, most = self._seen, 0
        for key in (f"{call.tool} {_in_one_spelling(call.arguments)}", canonical(call.content)):
            # What came last stands last, so that what has not come for long is let go.
            seen[key] = seen.pop(key, 0) + 1
            most = max(most, seen[key])
        while len(seen) > _FAILURES_HELD:
            del seen[next(iter(seen))]
        if most >= self.count:
            self.count = most
            self.subject = f"{call.tool}: {call.text()}"[:_SHOWN]
        return most > 1


def _in_one_spelling(arguments: str) -> str:
    try:
        return canonical(loads(arguments))
    except ValueError:
        return arguments


def _code_of(period: int) -> StuckCode:
    if period == 1:
        return "STUCK_REPEAT"
    return "STUCK_ALTERNATION" if period == 2 else "STUCK_CYCLE"


def _words(text: str) -> Counter[str]:
    import re

    # Numbers are left out: "round 3 of 9" says what "round 4 of 9" says.
    return Counter(re.findall(_WORD, text[:_CHARS_COMPARED].lower()))


def _alike(one: str, two: str) -> bool:
    if one == two:
        return True
    first, second = _words(one), _words(two)
    size = first.total() + second.total()
    return size == 0 or 2 * (first & second).total() / size >= _ALIKE
