"""Row ``headless-startup``: publishes what the launcher parsed as ``headless_startup``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.loader.host import CommandLine
from dsh.product.headless.service import HEADLESS_STARTUP

if TYPE_CHECKING:
    from dsh.kernel import Context

name = "headless-startup"
inject = (CommandLine,)
provide = (HEADLESS_STARTUP,)


def apply(ctx: Context) -> None:
    """Publish the startup that the launcher parsed from the command line."""
    ctx.provide(HEADLESS_STARTUP, ctx.require(CommandLine).parsed)
