"""Events of hot reload; their wire names are facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dsh.kernel.events import Emit, Parallel

if TYPE_CHECKING:
    from dsh.kernel import Runtime


class FileChanged:
    """A watched file changed that is neither configuration nor a loaded module.

    Attributes:
        url: The file, as a ``file:`` URL; it may be gone.
    """

    __slots__ = ("url",)

    def __init__(self, url: str) -> None:
        self.url = url


class Reloaded(NamedTuple):
    """What became of one plugin.

    Attributes:
        filename: The file its module was loaded from.
        runtime: What the kernel knows of the new plugin; None when no row of it is mounted.
    """

    filename: str
    runtime: Runtime | None


class CodeReloaded:
    """New code serves.

    Attributes:
        plugins: New plugin object -> where it came from.
    """

    __slots__ = ("plugins",)

    def __init__(self, plugins: Mapping[Any, Reloaded]) -> None:
        self.plugins = plugins


class ConfigUpdateFailed:
    """A watched configuration file changed, and what it says could not be applied.

    Attributes:
        filename: The file, as it was registered, absolute.
        error: What the refresh raised.
    """

    __slots__ = ("error", "filename")

    def __init__(self, filename: str, error: Exception) -> None:
        self.filename, self.error = filename, error


HMR_CHANGE = Emit[FileChanged]("hmr/change", errors="contain")
"""After a file under a watched root changed that hot reload has no use for."""
HMR_RELOAD = Emit[CodeReloaded]("hmr/reload", errors="contain")
"""After edited modules were loaded and the rows of their plugins were mounted again."""
HMR_CONFIG_UPDATE_FAILED = Parallel[ConfigUpdateFailed]("hmr/config-update-failed")
"""After a refresh failed; the former state goes on. What listeners raise is reported."""
