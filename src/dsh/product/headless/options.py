"""What the headless command line asks for; imports nothing of the kernel, so that help is cheap."""

from __future__ import annotations

from typing import Literal

from dsh.base.values import value

OutputFormat = Literal["text", "json", "stream-json", "show"]
"""How a run is printed; ``show`` tells each step to a person, as the demo does."""


@value(kw_only=True)
class HeadlessStartup:
    """One run, as asked for on the command line."""

    task: str
    """What the agent is told; not blank."""
    output_format: OutputFormat = "text"
    model: str | None = None
    """``[provider/]id``; split only where the first part names a registered provider."""
    cwd: str | None = None
    """Absolute path of the workspace; ``None`` for the folder the process runs in."""
    resume: str | None = None
    """Id of the session to go on with, or ``last`` for the newest of the workspace."""
    no_save: bool = False
    """The user knows that the profile cannot be saved, and wants to hear nothing of it."""
