"""What goes wrong in a running tree: one line for the user, the traceback for the log."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dsh.loader.audit import Problem, describe
from dsh.loader.entry import Entry
from dsh.loader.say import write

if TYPE_CHECKING:
    from dsh.kernel import Context, Fiber

_KEPT = 200


class Journal:
    """Writes failures to a file in the home folder, made when the first one comes.

    While a tree boots nothing is said: the boot's own diagnosis tells it.
    """

    def __init__(
        self,
        home: Path,
        say: Callable[[str], None],
        *,
        redact: Callable[[str], str] = str,
        debug: bool = False,
    ) -> None:
        now = datetime.now(UTC)
        self.path = home / "logs" / f"{now:%Y%m%d-%H%M%S}-{os.getpid()}.log"
        self._say, self._redact = say, redact
        self._debug = debug
        self._quiet = True
        self._seen: list[BaseException] = []
        self._held: list[tuple[BaseException, str]] | None = None

    @contextmanager
    def attached(self, root: Context) -> Iterator[None]:
        """Take the contained errors of a root, and the log of dsh, while entered."""
        handler = _LogHandler(self)
        logger = logging.getLogger("dsh")
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        root.set_reporter(self._report)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate

    def say(self, text: str) -> None:
        """Tell the user one line, without secrets."""
        self._say(self._redact(" ".join(text.split())))

    def booted(self, left_out: Sequence[Problem] = ()) -> None:
        """Speak from now on; start with the rows that were left out."""
        self._quiet = False
        for problem in left_out:
            if problem.cause is not None:
                self.record([problem.cause])
            self.say(f"{problem}; it is left out (--strict makes this fatal)")

    @contextmanager
    def holding(self) -> Iterator[list[BaseException]]:
        """Hold back what is reported inside, until it is known what the caller tells itself.

        Yields:
            A list for the errors that the caller has told; their own lines are dropped, the
            others are said at the end.
        """
        told: list[BaseException] = []
        held: list[tuple[BaseException, str]] = []
        former, self._held = self._held, held
        try:
            yield told
        finally:
            self._held = former
            for error, text in held:
                if not any(error is each for each in told):
                    self.remark(text)

    def record(self, errors: Sequence[BaseException]) -> None:
        """Write tracebacks; an error that was written before is not repeated."""
        for error in errors:
            if any(error is each for each in self._seen):
                continue
            self._seen = [*self._seen[-_KEPT:], error]
            self.note("".join(traceback.format_exception(error)))

    def note(self, text: str) -> None:
        """Write a text; a home folder that cannot be written costs the user only the log."""
        text = self._redact(text.rstrip())
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A traceback may show values of a config: the file is its owner's alone.
            self.path.touch(mode=0o600)
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{datetime.now(UTC).isoformat()} {text}\n")
        except OSError:
            pass
        if self._debug:
            write(text)

    def remark(self, text: str) -> None:
        """Tell the user one line, unless the tree still boots, which has its own diagnosis."""
        if not self._quiet:
            self.say(text)

    def _report(self, error: BaseException, owner: Fiber | None, label: str) -> None:
        known = any(error is each for each in self._seen)
        self.record([error])
        if known:
            return
        text = f"{_named(owner)}: {label} failed: {describe(error)}"
        if self._held is not None:
            self._held.append((error, text))
        else:
            self.remark(text)


def _named(fiber: Fiber | None) -> str:
    """Return how texts call a fiber: by its row, where it belongs to one."""
    here = fiber
    while here is not None:
        if isinstance(here.entry, Entry):
            return f'row "{here.entry.id}" ({here.entry.name})'
        here = here.parent_fiber
    return f"plugin {fiber.name!r}" if fiber is not None else "the root"


class _LogHandler(logging.Handler):
    """Brings warnings of dsh's own modules to the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            error = record.exc_info[1] if record.exc_info else None
            if error is not None:
                self._journal.record([error])
                text = f"{text}: {describe(error)}"
            else:
                self._journal.note(text)
            self._journal.remark(text)
        except Exception:
            self.handleError(record)
